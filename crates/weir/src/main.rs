//! Weir, an API gateway: the binary.
//!
//! ```text
//!  weir run ──► settings ──► rules file or store ──► compile ──► data plane (worker threads)
//!                                ▲                      ▲
//!             main thread:   watch, SIGHUP, Admin API ──┘    metrics server, status server, DNS, health checks, signals
//! ```
//!
//! The main thread is the control thread: it reads configuration, compiles it and hands the result to the workers of
//! `weir-proxy`, and it never touches a request.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the request path, and this crate is not on it"
)]

mod agents;
mod alerts;
mod cli;
mod commands;
mod discovery;
mod exports;
mod failure;
mod process;
mod scram;
mod servers;
mod source;
mod stored;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, RunArgs};
use commands::{check, completions, convert, explain, ready, run, store};

fn main() -> ExitCode {
    // Usage errors end the process here, with exit code 2.
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&with_declarative_config(args)),
        Command::Check(args) => check::check(&with_declarative_config(args)),
        Command::Explain(args) => explain::explain(&args),
        Command::Convert(args) => convert::convert_file(&args),
        Command::Store(command) => store::run(&command),
        Command::Ready { address } => ready::ready(address),
        Command::Version => version(),
        Command::Completions { shell } => completions::print(shell),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The arguments with the rules file that Kong's own settings name, where neither a file nor a family is given.
fn with_declarative_config(mut args: RunArgs) -> RunArgs {
    if args.file.is_none() && args.family.is_none() {
        args.file = source::settings::declarative_config(&args.settings);
    }
    args
}

fn version() -> Result<(), failure::Failure> {
    failure::print(&format!("weir {}\n", env!("CARGO_PKG_VERSION")))
}
