//! `weir check`

use weir_config::{Diagnostic, Settings};

use crate::cli::CheckArgs;
use crate::failure::{Failure, print, print_error, print_findings};
use crate::process::preconditions::Preconditions;
use crate::source::changes::counted;
use crate::source::rules::Rules;
use crate::source::settings;

/// Prints all findings about a rules file and the settings. Succeeds if `run` would start with them.
pub(crate) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let (settings, refused) = settings(args)?;
    let rules = Rules::new(&args.rules, &settings)?;
    let text = match rules.read() {
        Ok(text) => text,
        // Both failures are printed.
        Err(error) if refused.is_some() => {
            print_error(&Failure::Other(error).text());
            return Err(refused.unwrap_or(Failure::Reported));
        }
        Err(error) => return Err(error.into()),
    };
    let loaded = rules.load(&text);
    drop(text);
    match rules.compile(loaded, 1) {
        Ok(ready) => {
            print_findings(&ready.findings);
            let mut summary = format!("{}: {}", rules.name, ready.digest.inventory());
            if !ready.findings.is_empty() {
                summary.push_str(&format!("; {}", totals(&ready.findings)));
            }
            if ready.left_out > 0 {
                summary.push_str(&format!("; {} left out", counted(ready.left_out, "item")));
            }
            print(&format!("{summary}\n"))?;
            refused.map_or(Ok(()), Err)
        }
        Err(findings) => {
            print_findings(&findings);
            print(&format!("{}: refused; {}\n", rules.name, totals(&findings)))?;
            Err(refused.unwrap_or(Failure::Reported))
        }
    }
}

/// Prints the findings about the settings. Returns the settings for checking the rules, which are the defaults if the
/// settings are refused, and the failure of the command in that case.
fn settings(args: &CheckArgs) -> Result<(Settings, Option<Failure>), Failure> {
    let name = args.settings.settings.as_ref().map_or("settings".to_owned(), |path| path.display().to_string());
    let (mut settings, found, mut failures) = match settings::load(&args.settings, args.listen.assignments()) {
        Ok(loaded) => (loaded.settings, loaded.warnings, Vec::new()),
        Err(failure) => (Settings::default(), Vec::new(), vec![failure]),
    };
    print_findings(&found);
    let mut warnings = found.len();
    if failures.is_empty() {
        let known = Preconditions::of(&mut settings);
        for doubt in &known.doubts {
            print_error(&format!("warning: {doubt}\n"));
        }
        warnings += known.doubts.len();
        failures = known.failures;
    }
    if failures.is_empty() {
        return Ok((settings, None));
    }
    let mut errors = 0;
    for failure in &failures {
        print_error(&failure.text());
        errors += match failure {
            Failure::Refused(found) | Failure::Flags(found) => {
                let wrong = found.iter().filter(|one| one.is_error()).count();
                warnings += found.len() - wrong;
                wrong
            }
            _ => 1,
        };
    }
    print(&format!("{name}: refused; {}, {}\n", counted(errors, "error"), counted(warnings, "warning")))?;
    let is_usage = failures.iter().any(|failure| matches!(failure, Failure::Usage(_) | Failure::Flags(_)));
    Ok((settings, Some(if is_usage { Failure::ReportedUsage } else { Failure::Reported })))
}

/// `2 errors, 1 warning`
fn totals(findings: &[Diagnostic]) -> String {
    let errors = findings.iter().filter(|found| found.is_error()).count();
    format!("{}, {}", counted(errors, "error"), counted(findings.len() - errors, "warning"))
}
