//! Certificates and keys kept outside the configuration, and findings about references without values.

use std::collections::HashMap;

use super::Loader;
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::{Kind, Mark, Node, Path, quoted};
use crate::secret::is_reference;

/// Fields of a certificate whose texts are PEM.
const FIELDS: [&str; 5] = ["cert", "key", "certs", "keys", "ca"];

impl Loader<'_> {
    /// Resolves the references of a certificate, or of a text that has to be PEM itself. A text that is no PEM is
    /// reported once, without findings about its length or its reference. `meanwhile` describes the fate of requests
    /// while a value is missing.
    pub(super) fn resolve_certificate(&mut self, node: &mut Node, path: &Path<'_>, meanwhile: &str) {
        let is_pem = node.as_str().is_some();
        let mut references = HashMap::new();
        texts(node, path, is_pem, &mut |path, text, _| {
            if is_reference(text) {
                references.insert(path, text.to_owned());
            }
        });
        let before = self.found.len();
        let unresolved = self.resolve(node, path);
        let mut settled: Vec<String> = self.found.iter().skip(before).map(|found| found.path.clone()).collect();
        let mut found = Vec::new();
        texts(node, path, is_pem, &mut |path, text, mark| {
            if let Some(reference) = references.get(&path)
                && text != reference
                && !text.trim_start().starts_with("-----BEGIN ")
            {
                let code = Code::NotPem { reference: quoted(reference) };
                found.push(Diagnostic::error(mark, path.as_str(), code));
                settled.push(path);
            }
        });
        self.found.extend(found);
        self.settled.extend(settled);
        self.wait_for(unresolved, meanwhile);
    }
}

/// Calls `each` with path, text and mark of all texts that have to be PEM.
fn texts(node: &Node, path: &Path<'_>, is_pem: bool, each: &mut impl FnMut(String, &str, Mark)) {
    match &node.kind {
        Kind::Str(text) if is_pem => each(path.text(), text, node.mark),
        Kind::Seq(items) => {
            for (index, item) in items.iter().enumerate() {
                texts(item, &Path::Index(path, index), is_pem, each);
            }
        }
        Kind::Map(entries) => {
            for (key, value) in entries {
                texts(value, &Path::Name(path, &key.text), FIELDS.contains(&&*key.text), each);
            }
        }
        _ => {}
    }
}
