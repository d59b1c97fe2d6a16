//! `default_credentials`: credentials of requests that bring none.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, Flow, Invalid, RequestCx};

use super::{DraftLink, read};
use crate::threescale::credentials::{Lacking, Version};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    user_key: Option<String>,
    app_id: Option<String>,
    app_key: Option<String>,
}

/// The policy.
#[derive(Debug)]
struct Defaults {
    user_key: Option<String>,
    app: Option<(String, String)>,
}

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let Conf { user_key, app_id, app_key } = read::<Conf>(conf, field, cx)?;
    let app = app_id.zip(app_key);
    if user_key.is_none() && app.is_none() {
        cx.say([Invalid::new(field, "expected user_key, or app_id and app_key")]);
        return None;
    }
    Some(DraftLink::of(Defaults { user_key, app }))
}

impl Policy for Defaults {
    fn rewrite(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        if state.credentials.is_complete() {
            return Step::Next;
        }
        match parts.extractor.extract(cx, &mut state.credentials) {
            Ok(()) => {}
            Err(Lacking::Body) => return Step::Done(Flow::AwaitBody),
            // One half of the credentials is no reason to take another application's.
            Err(Lacking::Missing) if state.credentials.named().next().is_some() => {}
            Err(Lacking::Missing) => match (parts.extractor.version, &self.user_key, &self.app) {
                (Version::UserKey, Some(key), _) => {
                    state.credentials.set(Version::UserKey, [Some(key.as_bytes()), None]);
                }
                (Version::AppId, _, Some((id, key))) => {
                    state.credentials.set(Version::AppId, [Some(id.as_bytes()), Some(key.as_bytes())]);
                }
                _ => {}
            },
        }
        Step::Next
    }
}
