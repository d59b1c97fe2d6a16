//! What APISIX has and this gateway has not yet: one table. Supporting a feature means taking its line away here and
//! adding its field to the resource.

use crate::Diagnostic;
use crate::code::Code;
use crate::node::{Kind, Node, push_name};

/// A feature that is refused by name.
#[derive(Clone, Copy, Debug)]
pub struct Unsupported {
    /// In what it stands.
    pub place: Place,
    /// The field it is asked for with.
    pub field: &'static str,
    /// Which values ask for it.
    pub when: When,
    /// What it is called, for the message.
    pub feature: &'static str,
    /// A warning is enough in a rules file, because APISIX leaves it aside as well unless it is set up for it.
    pub left_aside: bool,
}

/// What a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The document itself.
    Document,
    /// A route.
    Route,
    /// A service.
    Service,
    /// An upstream, wherever it is written.
    Upstream,
    /// The `_meta` of a plugin configuration.
    Meta,
}

/// Which values of a field ask for a feature.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Any but null.
    Present,
    /// Any but null, an empty list and an empty mapping.
    NotEmpty,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// Everything that is refused as not supported yet.
#[rustfmt::skip]
pub const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        left_aside: true,
        ..refuse(Place::Document, "stream_routes", When::NotEmpty, "TCP and UDP proxying")
    },
    refuse(Place::Document, "graphql_cost_decorations", When::NotEmpty, "GraphQL cost limits"),
    refuse(Place::Route, "filter_func", When::Present, "Lua filter functions"),
    refuse(Place::Route, "script", When::Present, "Lua scripts"),
    refuse(Place::Route, "script_id", When::Present, "Lua scripts"),
    refuse(Place::Service, "script", When::Present, "Lua scripts"),
    refuse(Place::Upstream, "scheme", When::OneOf(&["grpc", "grpcs"]), "gRPC to upstreams"),
    refuse(Place::Upstream, "scheme", When::OneOf(&["tcp", "tls", "udp"]), "TCP and UDP proxying"),
    refuse(Place::Upstream, "scheme", When::OneOf(&["kafka"]), "Kafka proxying"),
    refuse(Place::Upstream, "service_name", When::Present, "service discovery"),
    refuse(Place::Upstream, "discovery_type", When::Present, "service discovery"),
    refuse(Place::Meta, "pre_function", When::Present, "Lua functions before plugins"),
];

const fn refuse(place: Place, field: &'static str, when: When, feature: &'static str) -> Unsupported {
    Unsupported { place, field, when, feature, left_aside: false }
}

impl Unsupported {
    /// The feature that a section of a document asks for, such as `stream_routes`.
    pub fn of_section(name: &str) -> Option<&'static Self> {
        UNSUPPORTED.iter().find(|entry| entry.place == Place::Document && entry.field == name)
    }

    /// The words of a refusal, with what has asked for the feature.
    pub fn refusal(&self, asked: &str) -> String {
        format!("not supported yet: {} ({asked})", self.feature)
    }
}

impl When {
    fn asks(self, node: &Node) -> bool {
        match (self, &node.kind) {
            (_, Kind::Null) => false,
            (Self::Present, _) => true,
            (Self::NotEmpty, Kind::Seq(items)) => !items.is_empty(),
            (Self::NotEmpty, Kind::Map(entries)) => !entries.is_empty(),
            (Self::NotEmpty, _) => true,
            (Self::OneOf(texts), Kind::Str(text)) => texts.contains(&text.as_str()),
            (Self::OneOf(_), _) => false,
        }
    }
}

/// Takes what is not supported out of a mapping, with an error or a warning for each. Returns the fields that were taken.
pub fn take_out(place: Place, node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) -> Vec<&'static str> {
    let mut taken = Vec::new();
    let Kind::Map(entries) = &mut node.kind else { return taken };
    entries.retain(|(key, value)| {
        let entry = UNSUPPORTED
            .iter()
            .find(|entry| entry.place == place && entry.field == &*key.text && entry.when.asks(value));
        let Some(entry) = entry else { return true };
        let mut path = path.to_owned();
        push_name(&mut path, entry.field);
        let message = match entry.when {
            When::OneOf(_) => entry.refusal(&format!("{}: {}", entry.field, value.as_str().unwrap_or_default())),
            _ => entry.refusal(entry.field),
        };
        let code = Code::Unsupported { refusal: message };
        found.push(if entry.left_aside {
            let warning = Diagnostic::warning(key.mark, path, code);
            warning.with_hint("it is left aside, as by APISIX with its default proxy_mode: http")
        } else {
            Diagnostic::error(key.mark, path, code)
        });
        taken.push(entry.field);
        false
    });
    taken
}
