use crate::host;

#[test]
fn every_shell_gets_a_script_that_names_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = host(&["completions", shell]).good();
        for word in [
            "train",
            "inspect",
            "completions",
            "synth",
            "convert",
            "date-format",
            "predict",
            "export",
            "config",
            "preset",
        ] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let unknown = host(&["completions", "dos"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("bash") && unknown.err.contains("dos"), "{}", unknown.err);
}

#[test]
fn help_describes_the_commands() {
    // Without a command: the same, as an error.
    let alone = host(&[]);
    assert!(alone.code == 2 && alone.err.contains("Usage: host <COMMAND>"), "{}", alone.err);
    let help = host(&["--help"]).good();
    for line in [
        "Check, convert or make a bar file",
        "Say what a checkpoint holds",
        "completes this program's commands",
        "Decide at the newest bar",
        "Write a policy for other programs",
        "with what every key means",
    ] {
        assert!(help.contains(line), "{help}");
    }
    let help = host(&["data", "--help"]).good();
    for command in ["check", "convert", "synth"] {
        assert!(help.contains(command), "{help}");
    }
}
