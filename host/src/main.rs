//! The program: parses the command line, runs the subcommand, prints an error with its causes.

use std::process::ExitCode;

use clap::Parser;
use host::cli::{Cli, Command};
use host::commands::{self, Ending};
use host::train::exit_code;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let result = match Cli::parse().command {
        Command::Train(args) => commands::train(&args),
        Command::Eval(args) => done(commands::eval(&args)),
        Command::Predict(args) => done(commands::predict::run(&args)),
        Command::Export(args) => done(commands::export::run(&args)),
        Command::Data(command) => done(commands::data::run(&command)),
        Command::Inspect(args) => done(commands::inspect::inspect(&args)),
        Command::Config(args) => done(commands::config::run(&args)),
        Command::Completions { shell } => done(commands::completions(shell)),
        Command::Profile(args) => done(commands::profile_command(&args)),
        Command::Doctor => done(commands::doctor_command()),
    };
    match result {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Stopped(signal)) => ExitCode::from(u8::try_from(exit_code(signal)).unwrap_or(u8::MAX)),
        Err(error) => {
            host::train::progress::write_line(&format!("error: {}", host::error::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

fn done(result: anyhow::Result<()>) -> anyhow::Result<Ending> {
    result.map(|()| Ending::Done)
}
