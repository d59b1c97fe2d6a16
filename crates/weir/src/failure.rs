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
    /// All has been told already, and the usage was wrong: exit code 2.
    ToldUsage,
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
        tell(&self.text());
        match self {
            Self::Usage(_) | Self::Flags(_) | Self::ToldUsage => ExitCode::from(USAGE),
            Self::Refused(_) | Self::Told | Self::Other(_) => ExitCode::FAILURE,
        }
    }

    /// What it says.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Usage(message) => format!("error: {message}\n\nFor more information, try '--help'.\n"),
            Self::Flags(found) | Self::Refused(found) => lines(found),
            Self::Told | Self::ToldUsage => String::new(),
            Self::Other(error) => format!("error: {error:#}\n"),
        }
    }
}

fn lines(found: &[Diagnostic]) -> String {
    found.iter().map(|one| format!("{one}\n")).collect()
}

/// Prints findings on standard error, one a line.
pub(crate) fn tell_all(found: &[Diagnostic]) {
    tell(&lines(found));
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
