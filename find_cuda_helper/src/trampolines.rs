//! Assembly and C text of the generated libcuda.

use std::fmt::Write;

/// Machines for which there are trampolines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

/// One trampoline per function, which jumps through `libcuda_table[i]`, and for each the code that its entry
/// points to before the first call.
///
/// Symbols are hidden: they serve the program that links them, and must not take the place of the real
/// driver's in libraries that the program loads later (cuBLASLt, NCCL).
pub(crate) fn assembly(machine: Machine, functions: &[String]) -> String {
    let mut out = String::from("    .text\n");
    out.push_str(match machine {
        Machine::X86_64 => X86_64_RESOLVE,
        Machine::Aarch64 => AARCH64_RESOLVE,
    });
    for (i, name) in functions.iter().enumerate() {
        let offset = 8 * i;
        let body = match machine {
            Machine::X86_64 => format!(
                "    endbr64\n    jmp *libcuda_table+{offset}(%rip)\n\
                 .Lfirst{i}:\n    endbr64\n    pushq ${i}\n    jmp .Lresolve\n"
            ),
            // x16 and x17 are the registers that the procedure call standard leaves to such veneers.
            Machine::Aarch64 => format!(
                "    hint #34\n    adrp x16, libcuda_table+{offset}\n    ldr x16, [x16, :lo12:libcuda_table+{offset}]\n    br x16\n\
                 .Lfirst{i}:\n    hint #36\n    mov w17, #{i}\n    b .Lresolve\n"
            ),
        };
        let kind = if machine == Machine::X86_64 { "@function" } else { "%function" };
        writeln!(
            out,
            "    .globl {name}\n    .hidden {name}\n    .type {name}, {kind}\n    .p2align 4\n{name}:\n{body}    .size {name}, .-{name}"
        )
        .expect("writing to a string");
    }
    out.push_str(
        "    .data\n    .p2align 3\n    .globl libcuda_table\n    .hidden libcuda_table\nlibcuda_table:\n",
    );
    for i in 0..functions.len() {
        writeln!(out, "    .quad .Lfirst{i}").expect("writing to a string");
    }
    let progbits = if machine == Machine::X86_64 { "@progbits" } else { "%progbits" };
    writeln!(out, "    .section .note.GNU-stack,\"\",{progbits}").expect("writing to a string");
    out
}

/// The C file around `loader.c`: the functions' names in the order of the table.
pub(crate) fn loader(functions: &[String]) -> String {
    let mut out = String::from(
        "#include <stdatomic.h>\n#include <stdint.h>\n\
         extern _Atomic uintptr_t libcuda_table[] __attribute__((visibility(\"hidden\")));\n\
         static const char *const libcuda_names[] = {\n",
    );
    for name in functions {
        writeln!(out, "    \"{name}\",").expect("writing to a string");
    }
    out.push_str("};\n");
    out.push_str(include_str!("loader.c"));
    out
}

/// For other systems: every function says that there is no device.
pub(crate) fn absent(functions: &[String]) -> String {
    let mut out = String::from(
        "/* There is no CUDA driver for this system: every function returns CUDA_ERROR_NO_DEVICE. */\n",
    );
    for name in functions {
        match name.as_str() {
            "cuGetErrorName" => out.push_str(
                "int cuGetErrorName(int code, const char **text) { (void)code; *text = \"CUDA_ERROR_NO_DEVICE\"; return 0; }\n",
            ),
            "cuGetErrorString" => out.push_str(
                "int cuGetErrorString(int code, const char **text) { (void)code; *text = \"there is no CUDA driver for this system\"; return 0; }\n",
            ),
            _ => writeln!(out, "int {name}(void) {{ return 100; }}").expect("writing to a string"),
        }
    }
    out.push_str(
        "const char *libcuda_load_error(void) { return \"there is no CUDA driver for this system\"; }\n",
    );
    out
}

// In: the function's index on top of the stack, above it the return address; all argument registers live.
// The pushes leave the stack 16-byte aligned: return address, index, six registers, 128 bytes.
const X86_64_RESOLVE: &str = "\
.Lresolve:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    pushq %r8
    .cfi_adjust_cfa_offset 8
    pushq %r9
    .cfi_adjust_cfa_offset 8
    subq $128, %rsp
    .cfi_adjust_cfa_offset 128
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq 176(%rsp), %rdi
    call libcuda_resolve
    movq %rax, %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    .cfi_adjust_cfa_offset -128
    popq %r9
    .cfi_adjust_cfa_offset -8
    popq %r8
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    jmp *%r11
    .cfi_endproc
";

// In: the function's index in w17; all argument registers live.
const AARCH64_RESOLVE: &str = "\
.Lresolve:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset 29, -224
    .cfi_offset 30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl libcuda_resolve
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    br x16
    .cfi_endproc
";
