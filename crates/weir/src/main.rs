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
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod admin_keys;
mod admin_server;
mod changes;
mod check;
mod cli;
mod completions;
mod control;
mod control_api;
mod copy;
mod data_dir;
mod descriptors;
mod drain;
mod error_log;
mod etcd;
mod explain;
mod failure;
mod file_source;
mod handover;
mod health_pages;
mod inherited;
mod insight;
mod keeper;
mod live;
mod live_text;
mod log_file;
mod metrics_server;
mod names;
mod peaks;
mod preconditions;
mod priority;
mod reload;
mod resources;
mod rules;
mod rules_file;
mod run;
mod schemas;
mod secret_managers;
mod secrets;
mod server;
mod server_info;
mod serving;
mod settings;
mod status_server;
mod store_command;
mod systemd;
mod upgrade;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    // Usage errors end the process here, with exit code 2.
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::check(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Store(command) => store_command::run(&command),
        Command::Version => version(),
        Command::Completions { shell } => completions::print(shell),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn version() -> Result<(), failure::Failure> {
    failure::print(&format!("weir {}\n", env!("CARGO_PKG_VERSION")))
}
