//! Listings of documents, run as a reader would: a command, and below it the JSON that it has to print.

use std::process::Command;

use serde_json::Value;

use crate::documentation::document;
use crate::harness::program;

/// Runs the commands of a document one after the other. What stands below one has to be in what it prints: every field
/// with its value, and every element of a list, in their order.
pub(crate) fn run(path: &str, variables: &[(&str, &str)]) -> usize {
    program("curl");
    let text = document(path);
    let listings: Vec<(&str, &str)> =
        text.split("```").skip(1).step_by(2).filter_map(|listing| listing.split_once('\n')).collect();
    let mut count = 0;
    for pair in listings.windows(2) {
        let [("sh", script), ("json", expected)] = pair else { continue };
        let output =
            Command::new("sh").args(["-c", script]).envs(variables.iter().copied()).output().expect("run a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        let found: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{script}: {error}: {said}"));
        let expected: Value =
            serde_json::from_str(expected).unwrap_or_else(|error| panic!("{path}: {error}: {expected}"));
        assert!(contains(&found, &expected), "{script}\nprinted\n{said}and not\n{expected}");
        count += 1;
    }
    count
}

/// True if `found` contains everything in `expected`.
pub(crate) fn contains(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            expected.iter().all(|(name, value)| found.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(found, value)| contains(found, value))
        }
        (Value::Number(found), Value::Number(expected)) => found.as_f64() == expected.as_f64(),
        _ => found == expected,
    }
}
