//! Failures of a command, and printing.

use std::io::{self, Write};
use std::process::ExitCode;

use weir_config::Diagnostic;

/// The reason why a command ends with an exit code other than 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is contradictory or not understood: exit code 2.
    Usage(String),
    /// A configuration is refused, for the errors among these findings: exit code 1.
    Refused(Vec<Diagnostic>),
    /// A configuration is refused because of a flag: exit code 2.
    Flags(Vec<Diagnostic>),
    /// The reasons have been printed already: exit code 1.
    Reported,
    /// The reasons have been printed already, and the usage was wrong: exit code 2.
    ReportedUsage,
    /// Any other error: exit code 1.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    /// Prints the failure on standard error. Returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        const USAGE: u8 = 2;
        print_error(&self.text());
        match self {
            Self::Usage(_) | Self::Flags(_) | Self::ReportedUsage => ExitCode::from(USAGE),
            Self::Refused(_) | Self::Reported | Self::Other(_) => ExitCode::FAILURE,
        }
    }

    /// The text for standard error.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Usage(message) => format!("error: {message}\n\nFor more information, try '--help'.\n"),
            Self::Flags(found) | Self::Refused(found) => lines(found),
            Self::Reported | Self::ReportedUsage => String::new(),
            Self::Other(error) => format!("error: {error:#}\n"),
        }
    }
}

fn lines(found: &[Diagnostic]) -> String {
    found.iter().map(|one| format!("{one}\n")).collect()
}

/// Prints findings on standard error, one a line.
pub(crate) fn print_findings(found: &[Diagnostic]) {
    print_error(&lines(found));
}

/// Prints on standard error. A failure to print is ignored, because the exit code reports the result as well.
pub(crate) fn print_error(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Prints a result on standard output. A reader that closes the pipe early (`| head`) is not a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Other(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}
