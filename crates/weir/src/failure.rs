//! How a command fails, and what it prints.

use std::io::{self, Write};
use std::process::ExitCode;

use weir_config::Diagnostic;

/// Why a command ends with another exit code than 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the user asked for is contradictory or not understood: exit code 2.
    Usage(String),
    /// A configuration is refused, for the errors among these findings: exit code 1.
    Refused(Vec<Diagnostic>),
    /// The same, caused by a flag: exit code 2.
    Flags(Vec<Diagnostic>),
    /// All has been told already: exit code 1.
    Told,
    /// Something else: exit code 1.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    /// Tells it on standard error.
    pub(crate) fn report(self) -> ExitCode {
        const USAGE: u8 = 2;
        match self {
            Self::Usage(message) => {
                tell(&format!("error: {message}\n\nFor more information, try '--help'.\n"));
                ExitCode::from(USAGE)
            }
            Self::Flags(found) => {
                tell_all(&found);
                ExitCode::from(USAGE)
            }
            Self::Refused(found) => {
                tell_all(&found);
                ExitCode::FAILURE
            }
            Self::Told => ExitCode::FAILURE,
            Self::Other(error) => {
                tell(&format!("error: {error:#}\n"));
                ExitCode::FAILURE
            }
        }
    }
}

/// Prints findings on standard error, one a line.
pub(crate) fn tell_all(found: &[Diagnostic]) {
    let mut text = String::new();
    for one in found {
        text.push_str(&one.to_string());
        text.push('\n');
    }
    tell(&text);
}

/// Prints on standard error. Where nobody can be told, the exit code has to do.
pub(crate) fn tell(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Prints a result on standard output. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Other(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}
