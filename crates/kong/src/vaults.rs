//! References to Kong's vault of environment variables: `{vault://env/my-secret}` is the variable `MY_SECRET`, and
//! `{vault://env/my-secret/field}` a field of the JSON in it. An entity of `vaults` may give the vault another name, and
//! its variables a prefix.

use weir_config::Node;
use weir_config::env::Variables;

/// The vaults of a document: the name in references, and the prefix of the variables.
#[derive(Debug)]
pub(crate) struct Vaults(Vec<(String, String)>);

/// A reference without a value.
#[derive(Debug)]
pub(crate) struct Unresolved(pub(crate) String);

/// The beginning of every reference.
pub(crate) const START: &str = "{vault://";

impl Vaults {
    /// Reads the entities of a document.
    pub(crate) fn of(root: &Node) -> Self {
        let mut all = vec![("env".to_owned(), String::new())];
        for vault in root.get("vaults").and_then(Node::as_seq).unwrap_or_default() {
            let text = |field: &str| vault.get(field).and_then(Node::as_str);
            if let (Some(prefix), Some("env")) = (text("prefix"), text("name")) {
                let of_variables = vault.get("config").and_then(|config| config.get("prefix")?.as_str());
                all.push((prefix.to_owned(), of_variables.unwrap_or_default().to_owned()));
            }
        }
        Self(all)
    }

    /// The reference that a text begins with: its length, and its value. `None`: the text begins with no reference.
    pub(crate) fn resolve(&self, text: &str, variables: Variables<'_>) -> Option<(usize, Result<String, Unresolved>)> {
        let inner = text.strip_prefix(START)?;
        let end = inner.find('}')?;
        let reference = inner.get(..end)?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.' | '?' | '=' | '&');
        if !reference.chars().all(is_part) {
            return None;
        }
        let path = reference.split('?').next().unwrap_or_default();
        let mut steps = path.splitn(3, '/');
        let (vault, name, key) = (steps.next()?, steps.next()?, steps.next());
        Some((START.len() + end + 1, self.value(vault, name, key, variables)))
    }

    fn value(
        &self,
        vault: &str,
        name: &str,
        key: Option<&str>,
        variables: Variables<'_>,
    ) -> Result<String, Unresolved> {
        let known = self.0.iter().rev().find(|(prefix, _)| prefix == vault);
        let Some((_, prefix)) = known else {
            return Err(Unresolved(format!("there is no vault {vault} of environment variables")));
        };
        let variable = format!("{prefix}{name}").to_ascii_uppercase().replace('-', "_");
        let value = variables(&variable)
            .ok_or_else(|| Unresolved(format!("the environment variable {variable} is not set, or may not be read")))?;
        let Some(key) = key else { return Ok(value) };
        // JSON is YAML as well.
        let parsed = Node::parse(&value).ok();
        match parsed.as_ref().and_then(|parsed| parsed.root.get(key)).filter(|field| !field.is_null()) {
            Some(field) => Ok(field.as_str().map_or_else(|| field.to_json().to_string(), str::to_owned)),
            None => Err(Unresolved(format!("the environment variable {variable} holds no JSON with the field {key}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Vaults;
    use weir_config::Node;

    #[test]
    fn references_lead_to_variables() {
        let text = "vaults: [{prefix: mine, name: env, config: {prefix: APP_}}, {prefix: other, name: hcv}]";
        let root = Node::parse(text).expect("a tree").root;
        let vaults = Vaults::of(&root);
        let variables = |name: &str| match name {
            "KEY" => Some("k".to_owned()),
            "APP_MY_KEY" => Some("a".to_owned()),
            "DB" => Some(r#"{"user":"u","port":5}"#.to_owned()),
            _ => None,
        };
        let cases = [
            ("{vault://env/KEY}", Some(Some("k"))),
            ("{vault://env/key}x", Some(Some("k"))),
            ("{vault://env/key?ttl=5}", Some(Some("k"))),
            ("{vault://mine/my-key}", Some(Some("a"))),
            ("{vault://env/db/user}", Some(Some("u"))),
            ("{vault://env/db/port}", Some(Some("5"))),
            ("{vault://env/db/none}", Some(None)),
            ("{vault://env/none}", Some(None)),
            ("{vault://other/key}", Some(None)),
            ("{vault://env}", None),
            ("vault://env/key", None),
        ];
        for (text, expected) in cases {
            let found = vaults.resolve(text, &variables).map(|(_, value)| value.ok());
            assert_eq!(found.as_ref().map(Option::as_deref), expected, "{text}");
        }
    }
}
