//! The kinds of resources: what they are called and which methods they know. And where in them a path leads.

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode};
use weir_store::{Key, Kind};

use crate::answer::Answer;

/// A kind of resource, as the API offers it.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    /// What one of them is called in messages.
    pub(crate) noun: &'static str,
    /// Methods beside GET, PUT and DELETE.
    more: &'static [Method],
}

/// Every kind. That is the table of methods, too.
#[rustfmt::skip]
pub(crate) const RESOURCES: [Resource; 13] = [
    resource(Kind::Routes, "route", &[Method::POST, Method::PATCH]),
    resource(Kind::Services, "service", &[Method::POST, Method::PATCH]),
    resource(Kind::Upstreams, "upstream", &[Method::POST, Method::PATCH]),
    resource(Kind::Ssls, "ssl", &[Method::POST, Method::PATCH]),
    resource(Kind::Protos, "proto", &[Method::POST]),
    resource(Kind::StreamRoutes, "stream route", &[Method::POST]),
    resource(Kind::Consumers, "consumer", &[]),
    resource(Kind::Credentials, "credential", &[]),
    resource(Kind::ConsumerGroups, "consumer group", &[Method::PATCH]),
    resource(Kind::PluginConfigs, "plugin config", &[Method::PATCH]),
    resource(Kind::GlobalRules, "global rule", &[Method::PATCH]),
    resource(Kind::PluginMetadata, "plugin_metadata", &[]),
    resource(Kind::Secrets, "secret", &[Method::PATCH]),
];

const fn resource(kind: Kind, noun: &'static str, more: &'static [Method]) -> Resource {
    Resource { kind, noun, more }
}

impl Resource {
    /// That of a kind.
    pub(crate) fn of(kind: Kind) -> &'static Self {
        let found = RESOURCES.iter().find(|resource| resource.kind == kind);
        found.unwrap_or(&RESOURCES[0])
    }

    /// The methods that it knows.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &Method> {
        const OF_ALL: &[Method] = &[Method::GET, Method::PUT, Method::DELETE];
        OF_ALL.iter().chain(self.more)
    }

    /// Refuses a method that it does not know.
    pub(crate) fn check(&self, method: &Method) -> Result<(), Answer> {
        if *method == Method::HEAD || self.methods().any(|known| known == method) {
            return Ok(());
        }
        let message = format!("not supported `{method}` method for {}", self.noun);
        let refusal = Answer::error(StatusCode::METHOD_NOT_ALLOWED, message);
        let known: Vec<&str> = self.methods().map(Method::as_str).collect();
        let known = HeaderValue::from_str(&known.join(", "));
        // RFC 9110 section 15.5.6.
        Err(match known {
            Ok(known) => refusal.with(ALLOW, known),
            Err(_) => refusal,
        })
    }

    /// Whether its values carry their id; those of consumers have a username instead.
    pub(crate) fn has_id(&self) -> bool {
        self.kind != Kind::Consumers
    }

    /// Whether its values carry the times of their creation and last change.
    pub(crate) fn has_times(&self) -> bool {
        self.kind != Kind::PluginMetadata
    }
}

/// Where a path below `/apisix/admin` leads.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) resource: &'static Resource,
    /// The consumer of credentials, the manager of secrets.
    pub(crate) parent: Option<String>,
    /// The id in the path.
    pub(crate) id: Option<String>,
    /// What follows the id: a place inside the resource.
    pub(crate) inside: Vec<String>,
}

impl Place {
    /// Reads a path, of which there is at least one segment.
    pub(crate) fn parse(path: &[String]) -> Result<Self, Answer> {
        let unknown = |name: &str| {
            let message = format!("Unsupported resource type: {name}");
            Err(Answer::error(StatusCode::NOT_FOUND, message).unversioned())
        };
        let Some((first, rest)) = path.split_first() else { return unknown("") };
        if let ("consumers", [consumer, word, rest @ ..]) = (first.as_str(), rest)
            && word == "credentials"
        {
            return Ok(Self::new(Kind::Credentials, Some(consumer), rest));
        }
        if let ("secrets", [manager, rest @ ..]) = (first.as_str(), rest) {
            return Ok(Self::new(Kind::Secrets, Some(manager), rest));
        }
        let named =
            |resource: &&Resource| resource.kind != Kind::Credentials && resource.kind.directory() == first.as_str();
        match RESOURCES.iter().find(named) {
            Some(resource) => Ok(Self::new(resource.kind, None, rest)),
            None => unknown(first),
        }
    }

    fn new(kind: Kind, parent: Option<&String>, rest: &[String]) -> Self {
        Self {
            resource: Resource::of(kind),
            parent: parent.cloned(),
            id: rest.first().cloned(),
            inside: rest.get(1..).unwrap_or_default().to_vec(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.resource.kind
    }

    /// The key of the resource of this kind with this id; `None` for what can be no id.
    pub(crate) fn key(&self, id: &str) -> Option<Key> {
        let parent_fits = self.parent.as_deref().is_none_or(is_id);
        if !parent_fits || !is_id(id) {
            return None;
        }
        let id = match (self.kind(), &self.parent) {
            (Kind::Credentials, Some(consumer)) => format!("{consumer}/credentials/{id}"),
            (Kind::Secrets, Some(manager)) => format!("{manager}/{id}"),
            (Kind::Credentials | Kind::Secrets, None) => return None,
            _ => id.to_owned(),
        };
        Some(Key::new(self.kind(), &id))
    }
}

/// The id that a value carries: with a secret's goes its manager, with a credential's its consumer does not.
pub(crate) fn own_id(key: &Key) -> &str {
    match key.kind() {
        Kind::Credentials => key.id().rsplit('/').next().unwrap_or_default(),
        _ => key.id(),
    }
}

/// Whether a text may be a part of a key: nothing that could lead to another place in a store.
fn is_id(text: &str) -> bool {
    const LONGEST: usize = 256;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !matches!(text, "" | "." | "..") && text.len() <= LONGEST && text.bytes().all(fits)
}
