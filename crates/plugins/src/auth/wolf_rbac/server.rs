//! Questions to a server of wolf.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use weir_net::Network;
use weir_plugin::Invalid;
use weir_wire::method::Method;

use crate::fetch::Url;
use crate::query;

/// Limit for one answer about a request, and the pause before the question is asked again.
const ANSWER: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// Times that a question about a request is asked.
const TIMES: usize = 3;
/// Limit for all questions about a request.
pub(super) const CHECK: Duration = Duration::from_secs(31);
/// Limit for any other answer.
const OTHER: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const MOST: usize = 1 << 20;

/// A server of wolf.
#[derive(Debug)]
pub(super) struct Server {
    /// Its address, without a slash at its end.
    address: String,
    verify: bool,
}

/// The question whether a request may pass.
pub(super) struct Asked<'a> {
    pub(super) appid: &'a [u8],
    pub(super) action: &'a [u8],
    pub(super) resource: &'a [u8],
    pub(super) client: &'a [u8],
}

/// The answer to it.
#[derive(Debug)]
pub(super) struct Verdict {
    /// 200: it may; 4xx: it may not.
    pub(super) status: u16,
    pub(super) reason: Option<String>,
    /// The user, where wolf knows one.
    pub(super) user: Option<Value>,
}

impl Server {
    pub(super) fn new(address: &str, verify: bool) -> Result<Self, Invalid> {
        let parts = Url::parse(address).map_err(|message| Invalid::new("server", message))?;
        if parts.target.contains(['?', '#']) {
            return Err(Invalid::new("server", "expected an address without a query"));
        }
        Ok(Self { address: address.trim_end_matches('/').to_owned(), verify })
    }

    /// Asks whether a request may pass.
    ///
    /// # Errors
    /// Reason why that is not known.
    pub(super) async fn check(
        &self,
        network: &Arc<Network>,
        asked: &Asked<'_>,
        token: &str,
    ) -> Result<Verdict, String> {
        let mut target = b"/wolf/rbac/access_check".to_vec();
        let arguments = [
            ("?appID=", asked.appid),
            ("&resName=", asked.resource),
            ("&action=", asked.action),
            ("&clientIP=", asked.client),
        ];
        for (name, value) in arguments {
            target.extend_from_slice(name.as_bytes());
            query::encode(value, &mut target);
        }
        let target = String::from_utf8_lossy(&target);
        for time in 1.. {
            let (status, body) = self.ask(network, Method::Get, &target, Some(token), "", ANSWER).await?;
            if status >= 500 && time < TIMES {
                weir_runtime::sleep(PAUSE).await;
                continue;
            }
            let answer = serde_json::from_slice::<Value>(&body).ok().filter(Value::is_object);
            return match (status, answer) {
                (200 | 400..=499, Some(answer)) => {
                    let reason = answer["reason"].as_str().map(str::to_owned);
                    let user = Some(answer["data"]["userInfo"].clone()).filter(Value::is_object);
                    Ok(Verdict { status, reason, user })
                }
                (400..=499, None) => {
                    let reason = "check permission failed! parse response json failed!".to_owned();
                    Ok(Verdict { status, reason: Some(reason), user: None })
                }
                (200, None) => Err("err:its answer is no object in JSON".to_owned()),
                _ => Err(format!("status:{status}")),
            };
        }
        Err("err:no answer".to_owned())
    }

    /// Asks for anything else; what stands in `data` of the answer. `None`: wolf does not do it.
    ///
    /// # Errors
    /// Reason why there is no answer.
    pub(super) async fn call(
        &self,
        network: &Arc<Network>,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: &Value,
    ) -> Result<Option<Value>, String> {
        let (status, answer) = self.ask(network, method, path, token, &body.to_string(), OTHER).await?;
        let mut answer = match status {
            200 => serde_json::from_slice::<Value>(&answer).map_err(|_| "err:its answer is no JSON".to_owned())?,
            _ => return Err(format!("status:{status}")),
        };
        match answer["ok"].as_bool() {
            Some(true) => Ok(Some(answer["data"].take())),
            _ => {
                let reason = answer["reason"].as_str().unwrap_or_default();
                tracing::info!(reason, path, "wolf does not do what it was asked for");
                Ok(None)
            }
        }
    }

    async fn ask(
        &self,
        network: &Arc<Network>,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: &str,
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        let url = Url::parse(&self.address)?;
        let (authority, before) = (url.authority, url.target);
        let mut message =
            format!("{} {before}{path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n", method.as_str());
        if let Some(token) = token {
            message.push_str(&format!("x-rbac-token: {token}\r\n"));
        }
        message.push_str("Content-Type: application/json; charset=utf-8\r\n");
        message.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let answer = url.ask(network, self.verify, message.as_bytes(), method, MOST);
        let answer = weir_runtime::timeout(limit, answer).await.ok_or("err:timeout")?;
        let answer = answer.map_err(|reason| format!("err:{reason}"))?;
        Ok((answer.status, answer.body.transpose()?.unwrap_or_default()))
    }
}
