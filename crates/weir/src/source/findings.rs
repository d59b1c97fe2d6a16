//! Findings about a configuration, in the log.

use weir_config::Diagnostic;

/// Maximum number of findings logged per configuration. `weir check` prints all of them.
const LOGGED: usize = 200;

/// Logs findings, errors first when there are too many.
pub(crate) fn log_findings(findings: &[Diagnostic]) {
    let errors = findings.iter().filter(|found| found.is_error());
    let warnings = findings.iter().filter(|found| !found.is_error());
    for found in errors.chain(warnings).take(LOGGED) {
        if found.is_error() {
            tracing::error!("{found}");
        } else {
            tracing::warn!("{found}");
        }
    }
    if findings.len() > LOGGED {
        tracing::error!("{} more findings; `weir check` prints all of them", findings.len() - LOGGED);
    }
}
