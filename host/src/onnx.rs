//! ONNX files: the messages of the format that an export writes, and a builder of graphs.
//!
//! The messages are those of `onnx.proto3` of the ONNX project, as far as they are needed here: names and field numbers
//! are that file's, encoding is the crate `prost`'s. Operators are of opset 17.

use prost::Message;

/// Version of the file format: the one that came with opset 17.
const IR_VERSION: i64 = 8;
/// Version of the operators.
const OPSET: i64 = 17;
/// Protobuf's own limit of a message.
pub const LARGEST: usize = (1 << 31) - 1;

/// `TensorProto.DataType`.
pub mod element {
    /// f32.
    pub const FLOAT: i32 = 1;
    /// i64.
    pub const INT64: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(string, tag = "2")]
    producer_name: String,
    #[prost(string, tag = "3")]
    producer_version: String,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    metadata_props: Vec<StringStringEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfoProto>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, tag = "2")]
    f: f32,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(int64, repeated, tag = "8")]
    ints: Vec<i64>,
    #[prost(int32, tag = "20")]
    r#type: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    /// Little-endian elements.
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfoProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<TypeProto>,
    #[prost(string, tag = "3")]
    doc_string: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
struct DimensionProto {
    #[prost(oneof = "Dimension", tags = "1, 2")]
    value: Option<Dimension>,
}

/// An axis of an input or output.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Dimension {
    /// Of that length.
    #[prost(int64, tag = "1")]
    Fixed(i64),
    /// Of any length, with a name.
    #[prost(string, tag = "2")]
    Named(String),
}

/// An attribute of an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A float.
    Float(&'static str, f32),
    /// An integer.
    Int(&'static str, i64),
    /// A list of integers.
    Ints(&'static str, Vec<i64>),
}

impl Attribute {
    /// With the codes of `AttributeProto.AttributeType`.
    fn message(self) -> AttributeProto {
        match self {
            Self::Float(name, f) => AttributeProto { name: name.into(), f, r#type: 1, ..Default::default() },
            Self::Int(name, i) => AttributeProto { name: name.into(), i, r#type: 2, ..Default::default() },
            Self::Ints(name, ints) => {
                AttributeProto { name: name.into(), ints, r#type: 7, ..Default::default() }
            }
        }
    }
}

/// A value in a graph: an input, a constant or what an operator gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(String);

/// A graph that is being built.
#[derive(Default)]
pub struct Graph {
    graph: GraphProto,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        Self { graph: GraphProto { name: name.into(), ..Default::default() } }
    }

    /// An input of f32.
    pub fn input(&mut self, name: &str, dimensions: Vec<Dimension>, text: &str) -> Value {
        self.graph.input.push(value_info(name, element::FLOAT, dimensions, text));
        Value(name.into())
    }

    /// Makes a value an output under that name.
    pub fn output(
        &mut self,
        name: &str,
        value: &Value,
        element: i32,
        dimensions: Vec<Dimension>,
        text: &str,
    ) {
        self.graph.node.push(NodeProto {
            input: vec![value.0.clone()],
            output: vec![name.into()],
            name: format!("output_{name}"),
            op_type: "Identity".into(),
            attribute: Vec::new(),
        });
        self.graph.output.push(value_info(name, element, dimensions, text));
    }

    /// A constant of f32, row-major.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Value {
        let raw = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.constant(name, shape, element::FLOAT, raw)
    }

    /// A constant list of integers; equal lists are one constant.
    pub fn ints(&mut self, values: &[i64]) -> Value {
        let name = format!("ints_{}", values.iter().map(i64::to_string).collect::<Vec<_>>().join("_"));
        self.integers(name, &[values.len()], values)
    }

    /// A constant integer without an axis; equal ones are one constant.
    pub fn int(&mut self, value: i64) -> Value {
        self.integers(format!("int_{value}"), &[], &[value])
    }

    fn integers(&mut self, name: String, shape: &[usize], values: &[i64]) -> Value {
        if self.graph.initializer.iter().any(|tensor| tensor.name == name) {
            return Value(name);
        }
        let raw = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.constant(&name, shape, element::INT64, raw)
    }

    fn constant(&mut self, name: &str, shape: &[usize], data_type: i32, raw_data: Vec<u8>) -> Value {
        let dims = shape.iter().map(|&n| n as i64).collect();
        self.graph.initializer.push(TensorProto { dims, data_type, name: name.into(), raw_data });
        Value(name.into())
    }

    /// An operator with one output.
    pub fn op(&mut self, op: &str, inputs: &[&Value], attributes: Vec<Attribute>) -> Value {
        let mut outputs = self.op_many(op, inputs, attributes, 1);
        outputs.remove(0)
    }

    /// An operator with several outputs.
    pub fn op_many(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: Vec<Attribute>,
        outputs: usize,
    ) -> Vec<Value> {
        let name = format!("{}_{}", op.to_lowercase(), self.graph.node.len());
        let outputs: Vec<Value> = (0..outputs).map(|i| Value(format!("{name}_{i}"))).collect();
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|value| value.0.clone()).collect(),
            output: outputs.iter().map(|value| value.0.clone()).collect(),
            name,
            op_type: op.into(),
            attribute: attributes.into_iter().map(Attribute::message).collect(),
        });
        outputs
    }

    /// The file, with these pairs as its metadata.
    pub fn file(self, metadata: &[(&str, String)]) -> Vec<u8> {
        let pair = |(key, value): &(&str, String)| StringStringEntryProto {
            key: (*key).into(),
            value: value.clone(),
        };
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "stepgraph".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            graph: Some(self.graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
            metadata_props: metadata.iter().map(pair).collect(),
        }
        .encode_to_vec()
    }
}

fn value_info(name: &str, elem_type: i32, dimensions: Vec<Dimension>, text: &str) -> ValueInfoProto {
    let dim = dimensions.into_iter().map(|value| DimensionProto { value: Some(value) }).collect();
    let tensor = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type: Some(tensor) }),
        doc_string: text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a small model, worked out by hand from the field numbers: key = number << 3 | wire type.
    #[test]
    fn messages_have_the_field_numbers_of_the_format() {
        let dimension = DimensionProto { value: Some(Dimension::Named("N".into())) };
        assert_eq!(dimension.encode_to_vec(), [0x12, 1, b'N']);
        let attribute = Attribute::Ints("axes", vec![1, 2]).message();
        // name = 1, ints = 8 (packed), type = 20 (two bytes of key).
        let expected = [0x0a, 4, b'a', b'x', b'e', b's', 0x42, 2, 1, 2, 0xa0, 1, 7];
        assert_eq!(attribute.encode_to_vec(), expected);
        let mut graph = Graph::new("g");
        let constant = graph.floats("c", &[1], &[1.0]);
        assert_eq!(constant, Value("c".into()));
        let tensor = graph.graph.initializer[0].encode_to_vec();
        assert_eq!(tensor, [0x0a, 1, 1, 0x10, 1, 0x42, 1, b'c', 0x4a, 4, 0, 0, 0x80, 0x3f]);
    }

    #[test]
    fn equal_lists_are_one_constant_and_names_are_unique() {
        let mut graph = Graph::new("g");
        let x = graph.input("x", vec![Dimension::Named("N".into())], "");
        assert_eq!(graph.ints(&[0, -1]), graph.ints(&[0, -1]));
        assert_eq!(graph.graph.initializer.len(), 1);
        let (a, b) = (graph.op("Exp", &[&x], vec![]), graph.op("Exp", &[&x], vec![]));
        assert_ne!(a, b);
        let parts = graph.op_many("Split", &[&a], vec![], 2);
        assert_ne!(parts[0], parts[1]);
    }
}
