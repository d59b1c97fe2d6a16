//! The plugins of an item.

use weir_expr::Expr;

use super::Loader;
use super::rules::{drop_nulls, field};
use crate::catalog::{Checked, Scope};
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::node::{COMPILED, Key, Kind, Mark, Node, Path, UNRESOLVED, quoted};

/// Names that people write, as other gateways have them, with APISIX's own.
#[rustfmt::skip]
const OTHER_NAMES: &[(&str, &str)] = &[
    ("rate-limit", "limit-count"), ("rate-limiting", "limit-count"), ("rate_limit", "limit-count"),
    ("rate_limiting", "limit-count"), ("ratelimit", "limit-count"), ("limit-rate", "limit-req"),
    ("connection-limit", "limit-conn"), ("jwt", "jwt-auth"), ("basic", "basic-auth"), ("hmac", "hmac-auth"),
    ("oidc", "openid-connect"), ("openid", "openid-connect"), ("keycloak", "authz-keycloak"),
    ("correlation-id", "request-id"), ("request-transformer", "proxy-rewrite"), ("rewrite", "proxy-rewrite"),
    ("response-transformer", "response-rewrite"), ("circuit-breaker", "api-breaker"), ("ip-whitelist", "ip-restriction"),
    ("ip-blacklist", "ip-restriction"), ("bot-detection", "ua-restriction"), ("mirror", "proxy-mirror"),
    ("cache", "proxy-cache"), ("mock", "mocking"), ("canary", "traffic-split"), ("compression", "gzip"),
    ("request-size-limiting", "client-control"), ("request-termination", "mocking"),
    ("file-log", "file-logger"), ("http-log", "http-logger"), ("acl", "consumer-restriction"),
];

fn is_on(flag: Option<&Node>) -> bool {
    flag.is_some_and(|flag| flag.kind == Kind::Bool(true))
}

impl Loader<'_> {
    /// Checks the plugins of an item, and puts in place what they refer to.
    pub(super) fn plugins(&mut self, plugins: &mut Node, path: &Path<'_>, scope: Scope) {
        let Kind::Map(entries) = &mut plugins.kind else { return };
        for (key, conf) in entries {
            self.plugin(key, conf, &Path::Name(path, &key.text), scope);
        }
    }

    fn plugin(&mut self, key: &Key, conf: &mut Node, path: &Path<'_>, scope: Scope) {
        if conf.is_null() {
            self.warn(key.mark, &path.text(), Code::NullTaken { meaning: "an empty mapping" });
            conf.kind = Kind::Map(Vec::new());
        }
        if conf.as_map().is_none() {
            return;
        }
        // A text that has this key must not get at what belongs to another configuration.
        conf.remove(COMPILED);
        self.meta(conf, path);
        let known = self.plugin_name(&key.text, key.mark, path);
        let meta = conf.remove("_meta");
        let unresolved = self.resolve(conf, path);
        let is_unresolved = !unresolved.is_empty();
        if is_unresolved {
            let is_disabled = meta.as_ref().is_some_and(|(_, meta)| is_on(meta.get("disable")));
            self.wait_for(unresolved, &self.meanwhile(&key.text, scope, is_disabled));
        }
        let compiled = if known { self.plugin_conf(&key.text, conf, path, scope) } else { None };
        if let Kind::Map(fields) = &mut conf.kind {
            fields.extend(meta);
            if let Some(number) = compiled {
                fields.push((Key { text: COMPILED.into(), mark: key.mark }, Node::new(Kind::Int(number))));
            }
            if is_unresolved {
                fields.push((Key { text: UNRESOLVED.into(), mark: key.mark }, Node::new(Kind::Bool(true))));
            }
        }
    }

    /// Describes the fate of requests while a value is missing.
    pub(super) fn meanwhile(&self, plugin: &str, scope: Scope, is_disabled: bool) -> String {
        match scope {
            _ if is_disabled => format!("{plugin} cannot be switched on"),
            Scope::GlobalRule => "all requests are answered 503".to_owned(),
            Scope::Consumer if self.plugins.is_auth(plugin) => {
                format!("nobody is let in by this configuration of {plugin}")
            }
            Scope::Consumer => "the requests of this consumer are answered 503".to_owned(),
            Scope::StreamRoute => "connections of this route are closed".to_owned(),
            Scope::Route | Scope::Metadata => format!("requests for which {plugin} runs are answered 503"),
        }
    }

    fn meta(&mut self, conf: &mut Node, path: &Path<'_>) {
        let Some((key, meta)) = conf.entry("_meta") else { return };
        let path = Path::Name(path, "_meta").text();
        if meta.is_null() {
            self.warn(key.mark, &path, Code::NullTaken { meaning: "not set" });
            conf.remove("_meta");
            return;
        }
        if let Some(meta) = conf.get_mut("_meta") {
            drop_nulls(meta, &path, &mut self.found);
            self.conditions(meta, &path, "filter");
        }
    }

    /// Checks conditions where they stand, and takes them out when they are wrong.
    pub(super) fn conditions(&mut self, parent: &mut Node, path: &str, name: &str) {
        let Some(node) = parent.get(name).filter(|node| node.as_seq().is_some()) else { return };
        let json = node.to_json();
        // The expression names a place inside it: [1][2].
        let mark = |path: &str| {
            let mut at = node;
            for index in path.split(['[', ']']).filter_map(|step| step.parse::<usize>().ok()) {
                at = at.as_seq().and_then(|items| items.get(index)).unwrap_or(at);
            }
            at.mark
        };
        let place = |inside: &str| format!("{}{inside}", field(path, name));
        let Err(error) = Expr::parse(&json) else {
            let doubts = Expr::doubts(&json).into_iter();
            self.found.extend(doubts.map(|doubt| {
                let code = Code::DoubtfulCondition { reason: doubt.message };
                Diagnostic::warning(mark(&doubt.path), place(&doubt.path), code)
            }));
            return;
        };
        let code = Code::Condition { fault: error.fault, reason: error.message };
        let found = Diagnostic::error(mark(&error.path), place(&error.path), code);
        self.found.push(Diagnostic { hint: Hint::nearest(error.nearest.as_deref()), ..found });
        parent.remove(name);
    }

    /// True if the plugin exists; reports a plugin that does not.
    pub(super) fn plugin_name(&mut self, name: &str, mark: Mark, path: &Path<'_>) -> bool {
        if self.plugin_names.contains(name) {
            return true;
        }
        let path = path.text();
        let error = if self.plugins.is_left_out(name) {
            Diagnostic::error(mark, path, Code::PluginTurnedOff { plugin: name.to_owned() })
                .with_hint("add it there, or take the setting out")
        } else if self.plugins.peers_known(name) {
            Diagnostic::error(mark, path, Code::UnsupportedPlugin { plugin: name.to_owned() })
        } else {
            let code = Code::UnknownPlugin { plugin: name.to_owned(), shown: quoted(name) };
            let error = Diagnostic::error(mark, path, code);
            let meant = OTHER_NAMES.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, meant)| *meant);
            match meant.or_else(|| nearest(name, self.known_plugins.iter().copied())) {
                Some(near) if self.plugin_names.contains(near) => error.with_hint(Hint::DidYouMean(near.to_owned())),
                Some(near) => error.with_hint(Hint::DidYouMeanUnsupported(near.to_owned())),
                None => error,
            }
        };
        self.found.push(error);
        false
    }

    /// Checks the configuration of a plugin, and keeps what the plugin has compiled of it under a number.
    pub(super) fn plugin_conf(&mut self, name: &str, conf: &Node, path: &Path<'_>, scope: Scope) -> Option<i64> {
        let Checked { found, compiled } = self.plugins.check(name, scope, conf);
        if !found.is_empty() {
            let path = path.text();
            let found = found.into_iter().map(|found| found.under(&path));
            self.found.extend(found.filter(|found| !self.unresolved.contains(&found.path)));
        }
        compiled.map(|compiled| self.compiled.put(compiled))
    }
}
