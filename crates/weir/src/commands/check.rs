//! `weir check`

use weir_config::{Diagnostic, Settings};

use crate::cli::CheckArgs;
use crate::failure::{Failure, print, tell, tell_all};
use crate::process::preconditions::Preconditions;
use crate::source::changes::counted;
use crate::source::rules::Rules;
use crate::source::settings;

/// Tells everything that is wrong with a rules file and with the settings, and whether `run` would start with them.
pub(crate) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let (settings, refused) = settings(args)?;
    let rules = Rules::new(&args.rules, &settings)?;
    let text = match rules.read() {
        Ok(text) => text,
        // Both are told.
        Err(error) if refused.is_some() => {
            tell(&Failure::Other(error).text());
            return Err(refused.unwrap_or(Failure::Told));
        }
        Err(error) => return Err(error.into()),
    };
    let loaded = rules.load(&text);
    drop(text);
    match rules.compile(loaded, 1) {
        Ok(ready) => {
            tell_all(&ready.findings);
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
            tell_all(&findings);
            print(&format!("{}: refused; {}\n", rules.name, totals(&findings)))?;
            Err(refused.unwrap_or(Failure::Told))
        }
    }
}

/// Tells what is wrong with the settings. Comes with those that the rules are checked with, which are the defaults where
/// there are no others, and with how the command ends where the settings are refused.
fn settings(args: &CheckArgs) -> Result<(Settings, Option<Failure>), Failure> {
    let name = args.settings.settings.as_ref().map_or("settings".to_owned(), |path| path.display().to_string());
    let (mut settings, found, mut failures) = match settings::load(&args.settings, args.listen.assignments()) {
        Ok(loaded) => (loaded.settings, loaded.warnings, Vec::new()),
        Err(failure) => (Settings::default(), Vec::new(), vec![failure]),
    };
    tell_all(&found);
    let mut warnings = found.len();
    if failures.is_empty() {
        let known = Preconditions::of(&mut settings);
        for doubt in &known.doubts {
            tell(&format!("warning: {doubt}\n"));
        }
        warnings += known.doubts.len();
        failures = known.failures;
    }
    if failures.is_empty() {
        return Ok((settings, None));
    }
    let mut errors = 0;
    for failure in &failures {
        tell(&failure.text());
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
    Ok((settings, Some(if is_usage { Failure::ToldUsage } else { Failure::Told })))
}

/// `2 errors, 1 warning`
fn totals(findings: &[Diagnostic]) -> String {
    let errors = findings.iter().filter(|found| found.is_error()).count();
    format!("{}, {}", counted(errors, "error"), counted(findings.len() - errors, "warning"))
}
