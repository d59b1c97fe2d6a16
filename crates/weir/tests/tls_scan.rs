//! Findings of a scanner of TLS servers: sslyze, against Mozilla's recommended configurations and known attacks.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Authority, Gateway, Kind, Start, each, repository};

/// The complaints of the scanner, except those about the test's own authority.
fn complaints(gateway: &Gateway, profile: &str) -> Vec<String> {
    let scanner = repository().join("target/test-tools/bin/sslyze");
    assert!(scanner.exists(), "{} is missing: tools/install-test-deps installs it", scanner.display());
    let addr = gateway.https.expect("a gateway with TLS").to_string();
    let output = Command::new(scanner)
        .args(["--sni", "a.test", "--mozilla_config", profile, &addr])
        .stdin(Stdio::null())
        .output()
        .expect("run the scanner");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("SCANS COMPLETED") && !said.contains("ERROR - Scan"), "{said}");
    let (scans, compliance) = said.split_once("COMPLIANCE AGAINST").unwrap_or_else(|| panic!("no verdict in {said}"));
    let vulnerable = scans.lines().filter(|line| line.contains("VULNERABLE -"));
    let against = compliance.lines().filter(|line| line.trim_start().starts_with("* "));
    let against = against.filter(|line| !line.contains("certificate_path_validation"));
    vulnerable.chain(against).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_scanner_finds_nothing_to_complain_of() {
    let start = |kind: Kind, protocols: Value| {
        // One for each: they are made at the same time.
        let made = Authority::new().certificate(kind, &["a.test"]);
        let ssl =
            json!({ "id": 1, "snis": ["a.test"], "cert": made.cert, "key": made.key, "ssl_protocols": protocols });
        let route = json!({ "id": 1, "uri": "/*", "plugins": { "mocking": { "response_example": "hello" } } });
        Start::new(json!({ "ssls": [ssl], "routes": [route] })).https().start()
    };
    let both = json!(["TLSv1.2", "TLSv1.3"]);
    let cases: [(&str, Kind, &Value, &str, &str); 4] = [
        ("ECDSA", Kind::P256, &both, "intermediate", ""),
        ("RSA", Kind::Rsa, &both, "intermediate", ""),
        ("the newest alone", Kind::P384, &json!(["TLSv1.3"]), "modern", ""),
        ("it can complain", Kind::Ed25519, &both, "modern", "tls_versions"),
    ];
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, kind, protocols, profile, complaint)| {
            let found = complaints(&start(*kind, (*protocols).clone()), profile);
            if complaint.is_empty() {
                assert!(found.is_empty(), "{found:#?}");
            } else {
                assert!(found.iter().any(|line| line.contains(complaint)), "{found:#?}");
            }
        },
    );
}
