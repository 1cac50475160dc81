use cuda_std::AccessKind::{Read, ReadWrite};
use cuda_std::ParamType::{Buffer, Scalar};

use super::*;
use crate::ptx::parse;

const HEAD: &str = ".version 7.8\n.target sm_90\n.address_size 64\n";

const KERNEL: KernelDecl = KernelDecl {
    name: "k",
    block: 128,
    barriers: 1,
    shuffles: 0,
    votes: 0,
    mmas: 0,
    resident: 0,
    only: None,
    params: &[
        Param { name: "rows", ty: Scalar(ElementType::I32) },
        Param { name: "x", ty: Buffer(ReadWrite, ElementType::F32) },
        Param { name: "seed", ty: Scalar(ElementType::U64) },
        Param { name: "scale", ty: Scalar(ElementType::F32) },
    ],
    file: "src/k.rs",
    line: 7,
};
const PARAMETERS: &str = ".param .u32 a, .param .u64 .ptr .align 1 b, .param .u64 c, .param .f32 d";

fn found(text: &str, kernels: &[&KernelDecl]) -> Vec<String> {
    let text = format!("{HEAD}{text}");
    problems(&parse(&text).unwrap(), kernels, "sm_90")
}

fn one(text: &str, kernels: &[&KernelDecl]) -> String {
    let all = found(text, kernels);
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

fn entry(body: &str) -> String {
    format!(".visible .entry k({PARAMETERS})\n{{ {body} ret; }}\n")
}

#[test]
fn a_matching_entry_passes() {
    assert_eq!(found(&entry("bar.sync 0;"), &[&KERNEL]), Vec::<String>::new());
    // Fewer than the limit: the compiler may drop one.
    assert_eq!(found(&entry(""), &[&KERNEL]), Vec::<String>::new());
}

#[test]
fn a_kernel_of_another_target_must_not_be_there() {
    let other = KernelDecl { only: Some("sm_90a"), ..KERNEL };
    let there = one(&entry(""), &[&other]);
    assert!(there.contains("PTX entry `k`"), "{there}");
    assert_eq!(found(&entry(""), &[&KernelDecl { only: Some("sm_90"), ..KERNEL }]), Vec::<String>::new());
    assert_eq!(found("", &[&other]), Vec::<String>::new());
}

#[test]
fn entries_and_declarations_are_compared_both_ways() {
    let other = KernelDecl { name: "other", line: 9, ..KERNEL };
    let missing = one(&entry(""), &[&KERNEL, &other]);
    assert!(
        missing.starts_with("kernel `other` (src/k.rs:9)") && missing.contains("no PTX entry"),
        "{missing}"
    );
    let undeclared = found(&entry(""), &[]);
    assert!(undeclared[0].contains("PTX entry `k` (line 4)"), "{undeclared:?}");
    let twice = one(&entry(""), &[&KERNEL, &KernelDecl { line: 20, ..KERNEL }]);
    assert!(twice.contains("src/k.rs:20") && twice.contains("src/k.rs:7"), "{twice}");
}

#[test]
fn wrong_parameters_are_named() {
    let cases = [
        (
            ".param .u32 a, .param .u64 .ptr .align 1 b, .param .u64 c",
            "4 parameters are declared (rows, x, seed, scale)",
        ),
        (".param .u64 a, .param .u64 .ptr .align 1 b, .param .u64 c, .param .f32 d", "parameter 0 `rows`"),
        // A buffer that arrives as a number, and a number that arrives as a pointer.
        (".param .u32 a, .param .u64 b, .param .u64 c, .param .f32 d", "parameter 1 `x`"),
        (".param .u32 a, .param .u64 .ptr b, .param .u64 .ptr c, .param .f32 d", "parameter 2 `seed`"),
        (
            ".param .u32 a, .param .u64 .ptr b, .param .u64 c, .param .u32 d",
            "parameter 3 `scale` is declared as f32",
        ),
        (".param .u32 a, .param .align 8 .b8 b[16], .param .u64 c, .param .f32 d", "has .b8[]"),
    ];
    for (parameters, expected) in cases {
        let text = format!(".visible .entry k({parameters}) {{ ret; }}");
        let problem = one(&text, &[&KERNEL]);
        assert!(problem.contains("src/k.rs:7") && problem.contains(expected), "{problem}");
    }
}

/// What rustc writes for `if c {..} barrier; if c {..} else {..}` when its pass JumpThreading runs.
#[test]
fn a_doubled_barrier_is_refused() {
    let text = include_str!("../tests/fixtures/doubled_barrier.ptx");
    let module = parse(text).unwrap();
    let jump = KernelDecl { name: "diverging_barrier", ..KERNEL };
    let params: &[Param] = &[
        Param { name: "c", ty: Scalar(ElementType::U32) },
        Param { name: "x", ty: Buffer(ReadWrite, ElementType::F32) },
        Param { name: "y", ty: Scalar(ElementType::F32) },
    ];
    let barrier = KernelDecl { params, ..jump };
    let shuffle = KernelDecl {
        name: "diverging_shuffle",
        barriers: 0,
        shuffles: 1,
        params: &[
            Param { name: "c", ty: Scalar(ElementType::U32) },
            Param { name: "x", ty: Buffer(ReadWrite, ElementType::U32) },
        ],
        ..KERNEL
    };
    let all = problems(&module, &[&barrier, &shuffle], "sm_90");
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("`barriers = 1` is declared, the PTX entry has 2 (PTX lines "), "{}", all[0]);
    assert!(all[1].contains("`shuffles = 1` is declared, the PTX entry has 2 (PTX lines "), "{}", all[1]);

    // The same with limits that fit: the barrier and the shuffle are all that is wrong with the text.
    let wide = [KernelDecl { barriers: 2, ..barrier }, KernelDecl { shuffles: 2, ..shuffle }];
    assert_eq!(problems(&module, &[&wide[0], &wide[1]], "sm_90"), Vec::<String>::new());
}

#[test]
fn each_kind_has_its_limit() {
    for (instruction, name) in [
        ("shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", "`shuffles = 0`"),
        ("vote.sync.any.pred %p1, %p2, -1;", "`votes = 0`"),
        ("bar.warp.sync -1;", "`votes = 0`"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r2}, {%r3}, {%r1};", "`mmas = 0`"),
    ] {
        let problem = one(&entry(instruction), &[&KERNEL]);
        assert!(problem.contains(name) && problem.contains("has 1"), "{problem}");
    }
}

#[test]
fn functions_count_for_their_callers_once_a_call() {
    let f = ".func f() { bar.sync 0; ret; }\n.func g() { call.uni f, (); ret; }\n";
    assert_eq!(found(&format!("{f}{}", entry("call.uni g, ();")), &[&KERNEL]), Vec::<String>::new());
    let problem = one(&format!("{f}{}", entry("call.uni g, (); call.uni f, ();")), &[&KERNEL]);
    assert!(problem.contains("has 2 (in functions it calls)"), "{problem}");
    let problem = one(&format!("{f}{}", entry("bar.sync 0;\ncall.uni f, ();")), &[&KERNEL]);
    assert!(problem.contains("and functions it calls"), "{problem}");
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let recursive = ".func f() { bar.sync 0; call.uni f, (); ret; }\n";
    let problem = one(&format!("{recursive}{}", entry("call.uni f, ();")), &[&KERNEL]);
    assert!(problem.contains("recursive function `f`"), "{problem}");
    let plain = ".func f() { call.uni f, (); ret; }\n";
    assert_eq!(found(&format!("{plain}{}", entry("call.uni f, ();")), &[&KERNEL]), Vec::<String>::new());

    let pointer = ".func f() { bar.sync 0; ret; }\n";
    let problem = one(&format!("{pointer}{}", entry("call (r), %rd1, (a), p_0;")), &[&KERNEL]);
    assert!(problem.contains("call through a pointer"), "{problem}");
    let problem = one(&entry("call.uni memcmp, (a);"), &[&KERNEL]);
    assert!(problem.contains("`memcmp`") && problem.contains("does not define"), "{problem}");
    assert_eq!(found(&entry("call.uni (r), vprintf, (a, b);"), &[&KERNEL]), Vec::<String>::new());
}

#[test]
fn block_sizes_are_written_behind_the_parameters() {
    let second = KernelDecl { name: "second", block: 32, params: &[], ..KERNEL };
    let text = format!("{HEAD}{}.visible .entry second()\n{{ ret; }}\n", entry("bar.sync 0;"));
    let kernels = [&second, &KERNEL];
    let out = with_block_sizes(&text, &parse(&text).unwrap(), &kernels);
    assert!(out.contains(&format!("k({PARAMETERS})\n.reqntid 128, 1, 1\n{{ bar.sync 0; ret; }}")), "{out}");
    assert!(out.ends_with("second()\n.reqntid 32, 1, 1\n{ ret; }\n"), "{out}");
    let two = KernelDecl { resident: 2, ..KERNEL };
    let out_of_two = with_block_sizes(&text, &parse(&text).unwrap(), &[&two]);
    assert!(out_of_two.contains("\n.reqntid 128, 1, 1\n.minnctapersm 2\n{"), "{out_of_two}");
    // And a second time would be noticed.
    let again = problems(&parse(&out).unwrap(), &kernels, "sm_90");
    assert!(again.iter().all(|p| p.contains(".reqntid")) && again.len() == 2, "{again:?}");
}

#[test]
fn read_buffers_match_as_well() {
    let kernel = KernelDecl { params: &[Param { name: "x", ty: Buffer(Read, ElementType::U8) }], ..KERNEL };
    let text = ".visible .entry k(.param .u64 .ptr .global .align 4 a) { ret; }";
    assert_eq!(found(text, &[&kernel]), Vec::<String>::new());
}
