//! `weir convert`

use std::fs;

use weir_config::{FrontEnd, Node, Settings, load};
use weir_kong::{FAMILY, Manifests, convert, is_manifests};

use crate::cli::ConvertArgs;
use crate::failure::{Failure, print, print_error, print_findings};
use crate::source::changes::counted;
use crate::source::rules::Rules;

/// Writes a configuration of Kong's as a rules file in APISIX's form.
pub(crate) fn convert_file(args: &ConvertArgs) -> Result<(), Failure> {
    let rules = Rules::new(&args.rules, &Settings::default())?;
    let text = rules.read()?;
    // A configuration that cannot be served is not converted either.
    let ready = rules.compile(rules.load(&text), 1).map_err(Failure::Refused)?;
    print_findings(&ready.findings);
    drop(ready);
    let variables = |name: &str| std::env::var(name).ok();
    let manifests = std::str::from_utf8(&text).ok().filter(|text| is_manifests(text));
    let lowered = match manifests {
        Some(text) => {
            let (front_end, root) = Manifests::of(text, &args.rules.resolve);
            Some((front_end.family(), front_end.lower(root, &variables, &mut Vec::new())))
        }
        None => load::lowered(&text, &variables, rules.front_ends()),
    };
    let Some((_, lowered)) = lowered.filter(|(family, _)| *family == &FAMILY) else {
        let reason = "only configurations of Kong's are converted; files of other families are served as they are";
        return Err(Failure::Usage(format!("{}: {reason}", rules.name)));
    };
    let converted = convert(&lowered, &rules.name);
    check(&rules, &converted.text)?;
    for line in &converted.missing {
        print_error(&format!("no counterpart: {line}\n"));
    }
    let summary = format!("{}: {} without a counterpart\n", rules.name, counted(converted.missing.len(), "place"));
    match &args.output {
        None => {
            print_error(&summary);
            print(&converted.text)
        }
        Some(path) => {
            let written = fs::write(path, &converted.text);
            written.map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
            print(&summary)
        }
    }
}

/// Refuses a result that the gateway would not serve.
fn check(rules: &Rules, text: &str) -> Result<(), Failure> {
    let parsed = Node::parse(text).map_err(|error| Failure::Refused(vec![error]))?;
    let found = rules.check_tree(parsed.root);
    if found.iter().any(weir_config::Diagnostic::is_error) {
        print_error("the result would not be served; a value of the configuration has no counterpart:\n");
        return Err(Failure::Refused(found));
    }
    print_findings(&found);
    Ok(())
}
