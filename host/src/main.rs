//! The program: parses the command line, runs the subcommand, prints an error with its causes.

use std::process::ExitCode;

use clap::Parser;
use host::cli::{Cli, Command};
use host::commands;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let result = match Cli::parse().command {
        Command::Train(args) => commands::train(&args),
        Command::Eval(args) => commands::eval(&args),
        Command::Data(command) => commands::data::run(&command),
        Command::Report(args) => commands::report::report(&args),
        Command::Inspect(args) => commands::inspect::inspect(&args),
        Command::Completions { shell } => commands::completions(shell),
        Command::Profile(args) => commands::profile_command(&args),
        Command::Doctor => commands::doctor_command(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            host::train::progress::write_line(&format!("error: {}", host::error::chain(&error)));
            ExitCode::FAILURE
        }
    }
}
