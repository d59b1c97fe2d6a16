//! `weir completions`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::{self, Failure};

/// Prints the script that makes a shell complete Weir's command line.
pub(crate) fn print(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
    failure::print(&String::from_utf8_lossy(&script))
}
