//! The messages of TensorBoard's event files, as far as they are written here, and their records.
//!
//! Names and tags are those of TensorFlow's `core/util/event.proto` and `core/framework/summary.proto`; the encoding is the
//! crate `prost`'s. (The crates that write event files bring a compiler of protocol buffers and a TLS library into the
//! build, or are no longer kept up.) A record is, little-endian: its length (u64), the masked CRC-32C of these eight bytes,
//! the message, the masked CRC-32C of it (`core/lib/io/record_writer.h`).

use prost::{Message, Oneof};

/// `Event`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// Training steps done.
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum What {
    /// The first event of a file: `brain.Event:2`.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// `Summary`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Tagged>,
}

/// `Summary.Value`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tagged {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(oneof = "Kind", tags = "2, 5")]
    pub value: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(float, tag = "2")]
    Simple(f32),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
}

/// `HistogramProto`: bucket k counts what lies between limits k - 1 and k.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

/// An event as it lies in a file.
pub(crate) fn record(event: &Event) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), &message, &masked(&message)].concat()
}

/// The checksum of bytes, rotated and moved so that checksums of checksums stay good ones.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// The events of a file, whose checksums have to be right.
#[cfg(test)]
pub(crate) fn events(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at(8);
        let count = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
        assert_eq!(rest[..4], masked(length), "checksum of a length");
        let message = &rest[4..][..count];
        assert_eq!(rest[4 + count..][..4], masked(message), "checksum of a message");
        events.push(Event::decode(message).expect("an event"));
        bytes = &rest[8 + count..];
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record written by TensorBoard's own package (2.21): `RecordWriter` on an event with wall time 1.5, step 7 and
    /// the scalar 0.5 under the tag `a`.
    #[test]
    fn a_record_is_that_of_tensorboard() {
        let summary = Summary { value: vec![Tagged { tag: "a".into(), value: Some(Kind::Simple(0.5)) }] };
        let event = Event { wall_time: 1.5, step: 7, what: Some(What::Summary(summary)) };
        let expected = "1700000000000000e7cef81e09000000000000f83f10072a0a0a080a0161150000003f6fd64f8c";
        let hex: String = record(&event).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        assert_eq!(events(&record(&event)), [event]);
    }
}
