//! Names for which clients are asked for a certificate in TLS: those of the routes with the plugin `mtls-auth`.

use std::collections::BTreeSet;

use weir_config::{Diagnostic, Node};

use super::names::MTLS_AUTH;
use super::plugins::Scoped;
use super::text;
use crate::document::{Document, Entity, EntityKind};

/// Names for which clients are asked for a certificate.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// True if they are for every name: a plugin is for all requests, or for a route that takes every name.
    all: bool,
    names: BTreeSet<String>,
    /// Names of all certificates.
    certified: BTreeSet<String>,
}

impl Asked {
    pub(crate) fn of(document: &Document, plugins: &Scoped<'_>, found: &mut Vec<Diagnostic>) -> Self {
        let snis = document.of(EntityKind::Snis).filter_map(|(_, sni)| sni.text("name"));
        let mut asked = Self { certified: snis.map(str::to_ascii_lowercase).collect(), ..Self::default() };
        for (plugin, routes) in plugins.routes_with(MTLS_AUTH) {
            let Some(routes) = routes else {
                asked.all = true;
                asked.doubt(plugin, found);
                continue;
            };
            for route in routes.into_iter().filter_map(|number| document.entities.get(number)) {
                asked.add(route);
            }
            asked.doubt(plugin, found);
        }
        asked
    }

    /// Adds the names of a route: its SNIs, or else its hosts.
    fn add(&mut self, route: &Entity) {
        let snis = route.texts("snis");
        let names = if snis.is_empty() { route.texts("hosts") } else { snis };
        let is_open = names.is_empty() || names.iter().any(|name| name.ends_with(".*"));
        self.all |= is_open || route.node.get("expression").is_some_and(|node| !node.is_null());
        self.names.extend(names.iter().map(|name| {
            let host = name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host);
            host.trim_end_matches('.').to_ascii_lowercase()
        }));
    }

    fn doubt(&self, plugin: &Entity, found: &mut Vec<Diagnostic>) {
        if self.certified.is_empty() {
            let text = "no client can show a certificate: there is no certificate with SNIs to be asked for under";
            found.push(plugin.doubt("name", text));
        }
    }

    /// Divides the names of a certificate into those under which clients are not asked and those under which they are, which
    /// may be more: single names of a wildcard.
    pub(super) fn divide(&self, snis: Vec<Node>) -> Vec<(Vec<Node>, bool)> {
        if self.all || self.names.is_empty() {
            return vec![(snis, self.all)];
        }
        let own: Vec<String> = snis.iter().filter_map(Node::as_str).map(str::to_ascii_lowercase).collect();
        let single = self.names.iter().filter(|name| {
            let certificate = self.certificate_of(name);
            certificate.is_some_and(|certificate| certificate != **name && own.iter().any(|own| own == certificate))
        });
        let single: Vec<Node> = single.map(|name| text(name)).collect();
        let (mut asking, plain): (Vec<Node>, Vec<Node>) =
            snis.into_iter().partition(|sni| sni.as_str().is_some_and(|name| self.covers(&name.to_ascii_lowercase())));
        asking.extend(single);
        [(plain, false), (asking, true)].into_iter().filter(|(names, _)| !names.is_empty()).collect()
    }

    /// True for a name that clients are asked under: a name itself, or one below a wildcard.
    fn covers(&self, name: &str) -> bool {
        self.names.contains(name) || wildcard(name).is_some_and(|wildcard| self.names.contains(&wildcard))
    }

    /// The name of the certificate that stands for `name`.
    fn certificate_of<'n>(&'n self, name: &'n str) -> Option<&'n str> {
        let wildcard = wildcard(name);
        let names = [Some(name), wildcard.as_deref(), Some("*")];
        names.into_iter().flatten().find_map(|name| self.certified.get(name)).map(String::as_str)
    }
}

/// The wildcard over a name: `*.a.test` for `x.a.test`.
fn wildcard(name: &str) -> Option<String> {
    name.split_once('.').filter(|(first, _)| *first != "*").map(|(_, rest)| format!("*.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::Asked;
    use crate::lower::text;

    #[test]
    fn names_are_divided() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let divided = |names: &[&str], snis: &[&str]| -> Vec<(Vec<String>, bool)> {
            let certified = [snis, &["other.test"]].concat();
            let asked = Asked { all: false, names: set(names), certified: set(&certified) };
            let parts = asked.divide(snis.iter().map(|name| text(name)).collect());
            let names = |nodes: Vec<weir_config::Node>| {
                nodes.iter().filter_map(weir_config::Node::as_str).map(str::to_owned).collect()
            };
            parts.into_iter().map(|(nodes, asks)| (names(nodes), asks)).collect()
        };
        let plain = |names: &[&str]| (set(names).into_iter().collect::<Vec<String>>(), false);
        let asking = |names: &[&str]| (names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>(), true);
        assert_eq!(divided(&["a.test"], &["a.test", "b.test"]), [plain(&["b.test"]), asking(&["a.test"])]);
        assert_eq!(divided(&["x.a.test"], &["*.a.test"]), [plain(&["*.a.test"]), asking(&["x.a.test"])]);
        assert_eq!(divided(&["*.a.test"], &["x.a.test"]), [asking(&["x.a.test"])]);
        assert_eq!(divided(&["x.a.test"], &["*"]), [plain(&["*"]), asking(&["x.a.test"])]);
        assert_eq!(divided(&["other.test"], &["*"]), [plain(&["*"])], "another certificate is for that name");
        assert_eq!(divided(&["none.test"], &["a.test"]), [plain(&["a.test"])]);
    }
}
