//! Schemas of resources and plugins, and checks against them.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::json;
use weir_config::Node;
use weir_store::Kind;

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::{Query, Request};
use crate::schemas::PluginSchema;
use crate::words;

impl Api {
    /// Names of all plugins.
    pub(crate) fn plugin_names(&self, query: &Query) -> Outcome {
        let subsystem = subsystem(query).map_err(|_| Answer::bad_text("invalid subsystem passed"))?;
        let plugins = self.gateway.schemas().plugins().iter().filter(|plugin| subsystem.has(plugin));
        let names: Vec<&str> = plugins.map(|plugin| plugin.name).collect();
        Ok(Answer::json(StatusCode::OK, &json!(names)))
    }

    /// Everything about every plugin.
    pub(crate) fn plugin_schemas(&self, query: &Query) -> Outcome {
        if query.get("all") != Some("true") {
            return Err(Answer::bad("expected ?all=true, or the name of a plugin: /apisix/admin/plugins/key-auth"));
        }
        match subsystem(query)? {
            Subsystem::Http => Ok(Answer::shared(self.gateway.schemas().all_plugins_text())),
            Subsystem::Stream => Ok(Answer::json(StatusCode::OK, &self.gateway.schemas().stream_plugins())),
        }
    }

    /// The schema of a plugin.
    pub(crate) fn plugin_schema(&self, name: &str, query: &Query) -> Outcome {
        let subsystem = subsystem(query)?;
        let plugin = self.gateway.schemas().plugin(name).filter(|plugin| subsystem.has(plugin)).ok_or_else(|| {
            let message = format!("plugin not found in subsystem {}", subsystem.name());
            Answer::error(StatusCode::NOT_FOUND, message)
        })?;
        let schema = match query.get("schema_type") {
            Some("consumer") => plugin.consumer_schema.as_ref(),
            Some("metadata") => plugin.metadata_schema.as_ref(),
            _ => Some(&plugin.schema),
        };
        let schema = schema.ok_or_else(|| Answer::bad("not found schema"))?;
        Ok(Answer::json(StatusCode::OK, schema))
    }

    /// All plugins with their documentation and an example each, those that run first first.
    pub(crate) fn plugins(&self) -> Answer {
        let told = |plugin: &PluginSchema| {
            json!({
                "name": plugin.name,
                "priority": plugin.priority,
                "auth": plugin.auth,
                "requests": plugin.requests,
                "streams": plugin.streams,
                "supported": plugin.supported,
                "metadata": plugin.metadata_schema.is_some(),
                "doc": plugin.doc,
                "example": plugin.example,
            })
        };
        let plugins: Vec<_> = self.gateway.schemas().plugins().iter().map(told).collect();
        Answer::json(StatusCode::OK, &json!({ "plugins": plugins }))
    }

    /// All plugins are part of the program, so there is nothing to load again.
    pub(crate) fn reload_plugins() -> Outcome {
        let answer = Answer::text(StatusCode::OK, "done".into());
        Ok(answer.with(CONTENT_TYPE, HeaderValue::from_static("text/plain")))
    }

    /// The schema of a kind of resource.
    pub(crate) fn resource_schema(&self, name: &str) -> Outcome {
        match self.gateway.schemas().resource(name) {
            Some(schema) => Ok(Answer::json(StatusCode::OK, schema)),
            None => Err(Answer::bad(format!("not found schema: {name}"))),
        }
    }

    /// Checks a resource by itself.
    pub(crate) async fn validate_resource(&self, section: &str, request: &Request) -> Outcome {
        let body = request.json().map_err(Answer::unversioned)?;
        let Some(body) = body else {
            return Err(Answer::bad("invalid request body: there is none").unversioned());
        };
        let unsupported =
            || Answer::error(StatusCode::NOT_FOUND, format!("Unsupported resource type: {section}")).unversioned();
        let kind = Kind::named(section).ok_or_else(unsupported)?;
        let gateway = Arc::clone(&self.gateway);
        // A proto is compiled.
        let node = Node::from(&body);
        let check = tokio::task::spawn_blocking(move || gateway.check_item(kind, node));
        let found = check.await.map_err(|panicked| {
            tracing::error!(%panicked, "a resource could not be checked");
            Answer::internal()
        })?;
        let found = found.ok_or_else(unsupported)?;
        match words::worst(&found) {
            Some(error) => Err(Answer::bad(words::of_check(kind, error, &body)).unversioned()),
            None => Ok(Answer::empty(StatusCode::OK).unversioned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subsystem {
    Http,
    Stream,
}

impl Subsystem {
    /// True for the plugins that run there.
    fn has(self, plugin: &PluginSchema) -> bool {
        match self {
            Self::Http => plugin.requests,
            Self::Stream => plugin.streams,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stream => "stream",
        }
    }
}

fn subsystem(query: &Query) -> Result<Subsystem, Answer> {
    match query.get("subsystem") {
        None | Some("http") => Ok(Subsystem::Http),
        Some("stream") => Ok(Subsystem::Stream),
        Some(other) => Err(Answer::bad(format!("unsupported subsystem: {other}"))),
    }
}
