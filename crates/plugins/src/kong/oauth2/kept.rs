//! Grants of a gateway with a store, which keeps their tokens.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use weir_plugin::{ConsumerMatch, RequestCx};

use super::endpoints::{Known, Outcome, refused};
use super::register::{Token, random_text};
use super::tokens::Grant;
use super::{Clients, Guard};
use crate::general::request_id::algorithm::uuid;

impl Guard {
    /// The client and the grant of an access token.
    pub(super) fn granted_by_kept(&self, cx: &RequestCx<'_>, text: &[u8]) -> Option<(ConsumerMatch, Vec<u8>, Grant)> {
        let token = self.tokens.by_access(text).filter(|token| token.holds(cx.unix_ms() / 1000))?;
        let found = cx.credentials::<Clients>(self.caller.position)?.find(token.client_id.as_bytes())?;
        let is_its = *found.more.id == *token.credential && token.service == self.service(cx);
        let grant = Grant { user: token.user.clone(), scope: token.scope.clone(), ..Grant::default() };
        is_its.then(|| (found.who, token.client_id.clone().into_bytes(), grant))
    }

    /// New tokens for a refresh token: in its place, or with the same refresh token.
    pub(super) fn refresh_kept(&self, cx: &RequestCx<'_>, known: &Known, text: &str) -> Outcome<Map<String, Value>> {
        let now = cx.unix_ms() / 1000;
        let token = self.tokens.by_refresh(text.as_bytes()).filter(|token| !token.has_ended(now));
        let Some(token) = token.filter(|token| token.service == self.service(cx)) else {
            return refused("invalid_request", "Invalid refresh_token");
        };
        if *token.credential != *known.client.id {
            return refused("invalid_client", "Invalid client authentication");
        }
        if self.conf.reuse_refresh_token {
            let Some(access) = random_text() else { return failed() };
            let expires_in = self.conf.token_expiration as u64;
            return self.written(Token { access, expires_in, created: now, ..Token::clone(&token) });
        }
        // One request of several with the same refresh token takes it.
        let Some(token) = self.tokens.remove(&token.id) else {
            return refused("invalid_request", "Invalid refresh_token");
        };
        let Token { service, user, scope, .. } = Arc::unwrap_or_clone(token);
        self.keep(cx, known, &Grant { service, user, scope, ..Grant::default() }, true)
    }

    /// Tokens for a grant.
    pub(super) fn keep(
        &self,
        cx: &RequestCx<'_>,
        known: &Known,
        grant: &Grant,
        refreshes: bool,
    ) -> Outcome<Map<String, Value>> {
        let now = cx.unix_ms() / 1000;
        let client_id = String::from_utf8(known.id.clone());
        let (Some(access), Ok(client_id), true) = (random_text(), client_id, self.tokens.len() < self.most_tokens)
        else {
            return failed();
        };
        let (expires_in, refresh_ttl) = (self.conf.token_expiration as u64, self.conf.refresh_token_ttl as u64);
        let refresh = if refreshes && expires_in > 0 { random_text() } else { None };
        // Without a refresh token it is of no use after its end.
        let life = if refresh.is_some() { refresh_ttl } else { expires_in };
        self.written(Token {
            id: uuid(),
            credential: known.client.id.as_ref().into(),
            client_id,
            service: grant.service.clone(),
            access,
            refresh,
            user: grant.user.clone(),
            scope: grant.scope.clone(),
            expires_in,
            created: now,
            ends: (life > 0).then(|| now.saturating_add(life)),
        })
    }

    /// Keeps a token and tells the client of it.
    fn written(&self, token: Token) -> Outcome<Map<String, Value>> {
        let mut body = Map::new();
        body.insert("access_token".into(), token.access.as_str().into());
        body.insert("token_type".into(), "bearer".into());
        if token.expires_in > 0 {
            body.insert("expires_in".into(), json!(token.expires_in));
            if let Some(refresh) = &token.refresh {
                body.insert("refresh_token".into(), refresh.as_str().into());
            }
        }
        if self.tokens.put(token) { Ok(body) } else { failed() }
    }
}

fn failed<T>() -> Outcome<T> {
    refused("server_error", "An unexpected error occurred")
}
