//! `weir check`

use weir_config::settings::ConfigProvider;
use weir_config::{Diagnostic, Settings};

use crate::cli::{RulesArgs, RunArgs};
use crate::commands::store;
use crate::failure::{Failure, print, print_error, print_findings};
use crate::process::preconditions::Preconditions;
use crate::source::changes::counted;
use crate::source::rules::{Rules, is_of_kong};
use crate::source::settings;
use crate::stored::etcd;

/// Prints all findings about the settings, and about a rules file or the resources that serve without one. Succeeds if `run`
/// would start with them.
pub(crate) fn check(args: &RunArgs) -> Result<(), Failure> {
    let (settings, refused) = settings(args)?;
    match (args.rules(), refused) {
        (Some(rules), refused) => check_file(&rules, &settings, refused),
        // The settings say where the resources are.
        (None, Some(refused)) => Err(refused),
        (None, None) if settings.deployment.config_provider == ConfigProvider::Etcd => {
            let hosts: Vec<String> = settings.deployment.etcd.host.iter().map(ToString::to_string).collect();
            let listing = etcd::reach(&settings)?;
            store::check_listing(&format!("etcd at {}: ", hosts.join(", ")), &settings, listing)
        }
        (None, None) if etcd::is_standalone(&settings, false) => {
            print("memory: empty at each start; the Admin API takes the resources\n")
        }
        (None, None) => store::check(settings),
    }
}

fn check_file(file: &RulesArgs, settings: &Settings, refused: Option<Failure>) -> Result<(), Failure> {
    let rules = Rules::new(file, settings)?;
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
fn settings(args: &RunArgs) -> Result<(Settings, Option<Failure>), Failure> {
    let name = args.settings.settings.as_ref().map_or("settings".to_owned(), |path| path.display().to_string());
    let (mut settings, found, mut failures) = match settings::load(&args.settings, args.assignments(), is_of_kong(args))
    {
        Ok(loaded) => (loaded.settings, loaded.warnings, Vec::new()),
        Err(failure) => (Settings::default(), Vec::new(), vec![failure]),
    };
    print_findings(&found);
    let mut warnings = found.len();
    if failures.is_empty() {
        let known = Preconditions::of(&mut settings, args.file.is_some());
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
