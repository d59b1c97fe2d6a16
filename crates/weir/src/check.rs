//! `weir check`

use weir_config::Diagnostic;

use crate::changes::counted;
use crate::cli::CheckArgs;
use crate::failure::{Failure, print, tell_all};
use crate::rules::Rules;
use crate::settings;

/// Tells everything that is wrong with a rules file, and whether `run` would take it.
pub(crate) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let settings::Loaded { settings, warnings, .. } = settings::load(&args.settings, args.listen.assignments())?;
    tell_all(&warnings);
    let rules = Rules::new(&args.rules, &settings)?;
    let loaded = rules.load(&rules.read()?);
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
            print(&format!("{summary}\n"))
        }
        Err(findings) => {
            tell_all(&findings);
            print(&format!("{}: refused; {}\n", rules.name, totals(&findings)))?;
            Err(Failure::Told)
        }
    }
}

/// `2 errors, 1 warning`
fn totals(findings: &[Diagnostic]) -> String {
    let errors = findings.iter().filter(|found| found.is_error()).count();
    format!("{}, {}", counted(errors, "error"), counted(findings.len() - errors, "warning"))
}
