//! Compares PTX with the kernels' declarations, and writes each kernel's block size into it.

use std::collections::{BTreeMap, HashMap};

use cuda_std::{ElementType, KernelDecl, Param, ParamType};

use crate::ptx::{Body, Collective, Entry, Function, Module, Parameter};

/// Functions that the driver provides to every module.
const DRIVER_FUNCTIONS: [&str; 4] = ["vprintf", "malloc", "free", "__assertfail"];

/// Everything in which the module for `arch` differs from the declarations, one text each; empty when nothing does.
pub(crate) fn problems(module: &Module, kernels: &[&KernelDecl], arch: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut declared: BTreeMap<&str, &KernelDecl> = BTreeMap::new();
    for kernel in kernels.iter().filter(|kernel| kernel.only.is_none_or(|only| only == arch)) {
        if let Some(first) = declared.insert(kernel.name, kernel) {
            out.push(format!(
                "{}: another kernel of the name is declared at {}",
                place(kernel),
                position(first)
            ));
        }
    }
    let functions: HashMap<&str, &Function> = module.functions.iter().map(|f| (f.name, f)).collect();
    for kernel in declared.values() {
        match module.entries.iter().find(|e| e.name == kernel.name) {
            Some(entry) => {
                compare_parameters(entry, kernel, &mut out);
                compare_limits(entry, &functions, kernel, &mut out);
                if let Some(directive) =
                    entry.directives.iter().find(|d| [".reqntid", ".maxntid"].contains(d))
                {
                    out.push(format!("{}: the PTX entry already has a {directive} directive", place(kernel)));
                }
            }
            None => out.push(format!("{}: declared, but there is no PTX entry of that name", place(kernel))),
        }
    }
    for entry in module.entries.iter().filter(|e| !declared.contains_key(e.name)) {
        out.push(format!(
            "PTX entry `{}` (line {}) is not among the declared kernels: add it to the crate's kernel list",
            entry.name, entry.line
        ));
    }
    out
}

fn position(kernel: &KernelDecl) -> String {
    format!("{}:{}", kernel.file, kernel.line)
}

fn place(kernel: &KernelDecl) -> String {
    format!("kernel `{}` ({})", kernel.name, position(kernel))
}

fn compare_parameters(entry: &Entry, kernel: &KernelDecl, out: &mut Vec<String>) {
    if entry.parameters.len() != kernel.params.len() {
        out.push(format!(
            "{}: {} parameters are declared ({}), the PTX entry has {} ({})",
            place(kernel),
            kernel.params.len(),
            list(kernel.params.iter().map(|p| p.name.to_string())),
            entry.parameters.len(),
            list(entry.parameters.iter().map(|p| p.to_string())),
        ));
        return;
    }
    for (i, (found, param)) in entry.parameters.iter().zip(kernel.params).enumerate() {
        if !matches(found, param) {
            out.push(format!(
                "{}: parameter {i} `{}` is declared as {}, the PTX entry has {found}",
                place(kernel),
                param.name,
                describe(param.ty)
            ));
        }
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Integers appear in PTX without their sign. An address must be marked as such: only those parameters whose
/// type is a pointer are, and a buffer that arrives as a plain number would be read with generic loads.
fn matches(found: &Parameter, param: &Param) -> bool {
    let types: &[&str] = match param.ty {
        ParamType::Buffer(..) => &["u64", "b64"],
        ParamType::Scalar(ElementType::F32) => &["f32"],
        ParamType::Scalar(ElementType::F64) => &["f64"],
        ParamType::Scalar(ElementType::U32 | ElementType::I32) => &["u32", "s32", "b32"],
        ParamType::Scalar(ElementType::U64 | ElementType::I64) => &["u64", "s64", "b64"],
        ParamType::Scalar(ElementType::U16) => &["u16", "b16"],
        ParamType::Scalar(ElementType::U8) => &["u8", "b8"],
    };
    types.contains(&found.ty) && !found.array && found.pointer == matches!(param.ty, ParamType::Buffer(..))
}

fn describe(ty: ParamType) -> String {
    match ty {
        ParamType::Scalar(element) => format!("{element:?}").to_ascii_lowercase(),
        ParamType::Buffer(access, element) => {
            format!(
                "a buffer of {} ({access}; an address, .u64 .ptr)",
                format!("{element:?}").to_ascii_lowercase()
            )
        }
    }
}

fn compare_limits(
    entry: &Entry,
    functions: &HashMap<&str, &Function>,
    kernel: &KernelDecl,
    out: &mut Vec<String>,
) {
    let mut reach = Reach { functions, totals: HashMap::new(), active: Vec::new(), findings: Vec::new() };
    let total = reach.body(&entry.body);
    out.extend(reach.findings.iter().map(|finding| format!("{}: {finding}", place(kernel))));

    for kind in Collective::ALL {
        let limit = match kind {
            Collective::Barrier => kernel.barriers,
            Collective::Shuffle => kernel.shuffles,
            Collective::Vote => kernel.votes,
            Collective::Matrix => kernel.mmas,
        };
        let found = total[kind as usize];
        if found > u64::from(limit) {
            let lines: Vec<_> =
                entry.body.collectives.iter().filter(|c| c.0 == kind).map(|c| c.1.to_string()).collect();
            let place_in_ptx = match lines.as_slice() {
                [] => "in functions it calls".to_string(),
                lines if lines.len() as u64 == found => format!("PTX lines {}", lines.join(", ")),
                lines => format!("PTX lines {} and functions it calls", lines.join(", ")),
            };
            out.push(format!(
                "{}: `{} = {limit}` is declared, the PTX entry has {found} ({place_in_ptx}). Either the compiler \
                 copied a synchronising instruction onto two paths, which is undefined on the device, or the \
                 declaration is too low (an unrolled loop counts each time)",
                place(kernel),
                kind.limit_name(),
            ));
        }
    }
}

/// Counts the collective instructions that a body can reach; each call counts as if it were inlined, so a call that
/// was copied onto two paths counts twice as well.
struct Reach<'m, 'a> {
    functions: &'m HashMap<&'a str, &'m Function<'a>>,
    totals: HashMap<&'a str, [u64; 4]>,
    active: Vec<&'a str>,
    findings: Vec<String>,
}

impl<'m, 'a> Reach<'m, 'a> {
    fn body(&mut self, body: &'m Body<'a>) -> [u64; 4] {
        let mut total = [0u64; 4];
        for &(kind, _) in &body.collectives {
            total[kind as usize] += 1;
        }
        for &(callee, line) in &body.calls {
            let inner = self.call(callee, line);
            for (sum, count) in total.iter_mut().zip(inner) {
                // Chains of calls multiply; the limit is exceeded long before the sum is.
                *sum = sum.saturating_add(count);
            }
        }
        if let Some(&line) = body.indirect_calls.first()
            && let Some(function) = self.functions.values().find(|f| !f.body.collectives.is_empty())
        {
            self.find(format!(
                "a call through a pointer (PTX line {line}) in a module whose function `{}` holds synchronising \
                 instructions: they cannot be counted",
                function.name
            ));
        }
        total
    }

    fn call(&mut self, callee: &'a str, line: u32) -> [u64; 4] {
        if let Some(&total) = self.totals.get(callee) {
            return total;
        }
        let Some(&function) = self.functions.get(callee) else {
            if !DRIVER_FUNCTIONS.contains(&callee) {
                self.find(format!("calls `{callee}` (PTX line {line}), which the module does not define"));
            }
            return [0; 4];
        };
        if let Some(from) = self.active.iter().position(|&name| name == callee) {
            let cycle = &self.active[from..];
            if cycle.iter().any(|name| !self.functions[name].body.collectives.is_empty()) {
                self.find(format!("the recursive function `{callee}` holds synchronising instructions"));
            }
            return [0; 4];
        }
        self.active.push(callee);
        let total = self.body(&function.body);
        self.active.pop();
        self.totals.insert(callee, total);
        total
    }

    fn find(&mut self, finding: String) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

/// The text with `.reqntid block, 1, 1` on every entry: the assembler then picks registers for that block size, and a
/// launch with another one is an error of the driver instead of a wrong result. Where a kernel says how many blocks are to be
/// resident, the assembler leaves registers for them (`.minnctapersm`).
///
/// The module was parsed from `text` and has no [`problems`].
pub(crate) fn with_block_sizes(text: &str, module: &Module, kernels: &[&KernelDecl]) -> String {
    let mut out = String::with_capacity(text.len() + 32 * kernels.len());
    let mut copied = 0;
    // Entries are in the order of the text.
    for entry in &module.entries {
        if let Some(kernel) = kernels.iter().find(|k| k.name == entry.name) {
            out.push_str(&text[copied..entry.after_parameters]);
            out.push_str(&format!("\n.reqntid {}, 1, 1", kernel.block));
            if kernel.resident > 0 {
                out.push_str(&format!("\n.minnctapersm {}", kernel.resident));
            }
            copied = entry.after_parameters;
        }
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
