//! Sessions made of policies alone, for callers whom a token names.

use std::sync::Arc;

use serde_json::json;

use super::policies::Policies;
use super::{Session, Sessions};

/// Most sessions that are kept for combinations of policies.
const MOST: usize = 1024;

/// Sessions by the policies that they are made of, kept until the policies change.
#[derive(Debug, Default)]
pub(crate) struct SessionsOfPolicies(papaya::HashMap<Box<str>, (Arc<Policies>, Arc<Session>)>);

impl SessionsOfPolicies {
    /// The session of policies in an organisation.
    ///
    /// # Errors
    /// They cannot be applied.
    pub(crate) fn find(&self, ids: &[String], org: &str, sessions: &Sessions) -> Result<Arc<Session>, String> {
        let name = ids.join("\n");
        let policies = sessions.policies();
        let kept = self.0.pin();
        if let Some((of, session)) = kept.get(name.as_str())
            && Arc::ptr_eq(of, &policies)
        {
            return Ok(Arc::clone(session));
        }
        if ids.is_empty() {
            return Err("no policy".to_owned());
        }
        let session = Arc::new(sessions.compile_apart(&json!({ "org_id": org, "apply_policies": ids }))?);
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(name.into(), (policies, Arc::clone(&session)));
        Ok(session)
    }
}
