//! Clients of OAuth servers: `/tyk/oauth`.

use serde_json::{Value, json};
use weir_plugins::tyk::ApiRequest;
use weir_plugins::tyk::sessions::records::{oauth_client, oauth_of};

use super::apis::Server;
use super::oauth::{Client, client, end_all, field, form, revoke, revoke_all};
use super::records::Records;
use super::{GatewayApi, Outcome, argument, random_id, status};

const NOT_FOUND: &str = "OAuth Client ID not found";
const NO_API: &str = "API doesn't exist";
const NO_SERVER: &str = "API is not OAuth2";
/// Tokens on a page of their list.
const PAGE: usize = 100;

/// Answers a request for clients and tokens; `None` for a path that is none.
pub(super) fn answer(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Option<Outcome> {
    let asked = Asked { api, request, records: Records::of(api, request) };
    Some(match (method, rest) {
        ("POST", ["clients", "create"]) => asked.create(),
        ("GET", ["clients", "apis", client]) => asked.apis_of(client, argument(request, "orgID").unwrap_or_default()),
        ("GET", ["clients", id]) => asked.list(id),
        ("GET", ["clients", id, client]) => asked.show(id, client),
        ("PUT", ["clients", id, client]) => asked.update(id, client),
        ("PUT", ["clients", id, client, "rotate"]) => asked.rotate(id, client),
        ("DELETE", ["clients", id, client]) => asked.delete(id, client),
        ("GET", ["clients", id, client, "tokens"]) => asked.tokens(id, client),
        ("DELETE", ["refresh", token]) => asked.end_refresh(token),
        ("POST", ["revoke"]) => asked.revoke(),
        ("POST", ["revoke_all"]) => asked.revoke_all(),
        ("DELETE", ["tokens"]) => match argument(request, "scope") {
            None => Err((422, "scope parameter is required".to_owned())),
            // Those that have ended go by themselves.
            Some("lapsed") => Ok(status("ok", "lapsed tokens purged")),
            Some(_) => Err((400, "unknown scope".to_owned())),
        },
        _ => return None,
    })
}

struct Asked<'r> {
    api: &'r GatewayApi,
    request: &'r ApiRequest,
    records: Records<'r>,
}

fn refused<T>(status: u16, text: &str) -> Result<T, (u16, String)> {
    Err((status, text.to_owned()))
}

/// A client as the API tells it.
fn shown(client: &Client) -> Value {
    json!({
        "client_id": client.text("id"), "redirect_uri": client.text("redirecturi"), "policy_id": client.text("policyid"),
        "secret": client.text("secret"), "meta_data": client.0["meta_data"], "description": client.text("description"),
    })
}

/// A random secret of a client.
fn secret() -> Result<String, (u16, String)> {
    Ok(base64::Engine::encode(&base64::engine::general_purpose::STANDARD, random_id()?))
}

impl Asked<'_> {
    fn body(&self) -> Outcome {
        let body = serde_json::from_slice::<Value>(&self.request.body).ok().filter(Value::is_object);
        body.ok_or((500, "Unmarshalling failed".to_owned()))
    }

    /// An API that is loaded.
    fn server(&self, id: &str) -> Option<Server> {
        self.api.loaded().server(id)
    }

    fn store(&self, server: &Server, client: &Value) -> Result<(), (u16, String)> {
        let (prefix, list) = (oauth_of(&server.id), format!("oauth-client-index.{}", server.org));
        let name = oauth_client(&server.id, client["id"].as_str().unwrap_or_default());
        self.records.put(&name, &client.to_string(), 0)?;
        self.records.enlist(&prefix, &list, &name, true)
    }

    fn create(&self) -> Outcome {
        let body = self.body()?;
        let text = |field: &str| body[field].as_str().unwrap_or_default();
        let id = if text("client_id").is_empty() { random_id()? } else { text("client_id").to_owned() };
        let secret = if text("secret").is_empty() { secret()? } else { text("secret").to_owned() };
        let mut made = json!({ "id": id, "secret": secret, "redirecturi": text("redirect_uri") });
        if !body["meta_data"].is_null() {
            made["meta_data"] = body["meta_data"].clone();
        }
        (made["policyid"], made["description"]) = (text("policy_id").into(), text("description").into());
        let servers = match text("api_id") {
            "" => self.servers_of(text("policy_id"))?,
            id => {
                let Some(server) = self.server(id) else { return refused(400, NO_API) };
                if !server.is_oauth {
                    return refused(400, NO_SERVER);
                }
                vec![server]
            }
        };
        for server in servers {
            self.store(&server, &made)?;
        }
        Ok(shown(&Client(made)))
    }

    /// The servers of all APIs that a policy has a right to.
    fn servers_of(&self, policy: &str) -> Result<Vec<Server>, (u16, String)> {
        let policies = self.api.sessions.policies();
        let Some(policy) = policies.get(policy) else { return refused(400, "Policy doesn't exist") };
        let mut servers = Vec::new();
        for id in policy["access_rights"].as_object().into_iter().flat_map(|rights| rights.keys()) {
            let Some(server) = self.server(id) else { return refused(400, NO_API) };
            if server.is_oauth || server.is_jwt {
                servers.push(server);
            }
        }
        if servers.is_empty() { refused(400, NO_SERVER) } else { Ok(servers) }
    }

    /// A client that is there, with its server.
    fn find(&self, id: &str, client_id: &str, unknown: &str) -> Result<(Server, Client), (u16, String)> {
        let Some(server) = self.server(id) else { return refused(404, unknown) };
        match client(&self.records, id, client_id)? {
            Some(client) => Ok((server, client)),
            None => refused(404, NOT_FOUND),
        }
    }

    fn list(&self, id: &str) -> Outcome {
        let Some(server) = self.server(id) else { return refused(404, "OAuth client not found") };
        let list = format!("oauth-client-index.{}", server.org);
        let found = self.records.listed(&oauth_of(id), &list, "oauth-clientid.")?;
        let clients = found.iter().filter_map(|(_, text)| serde_json::from_str(text).ok());
        Ok(clients.map(|client| shown(&Client(client))).collect())
    }

    fn show(&self, id: &str, client: &str) -> Outcome {
        Ok(shown(&self.find(id, client, NOT_FOUND)?.1))
    }

    fn update(&self, id: &str, client: &str) -> Outcome {
        let body = self.body()?;
        let text = |field: &str| body[field].as_str().unwrap_or_default();
        let policy = text("policy_id");
        if self.server(id).is_none() {
            return refused(404, NO_API);
        }
        if !policy.is_empty() {
            let policies = self.api.sessions.policies();
            let Some(policy) = policies.get(policy) else { return refused(404, "Policy doesn't exist") };
            if policy["access_rights"].get(id).is_none() {
                return refused(400, "Policy access rights doesn't contain API this OAuth client belongs to");
            }
        }
        let (server, Client(before)) = self.find(id, client, NO_API)?;
        let mut made = before.clone();
        (made["redirecturi"], made["policyid"]) = (text("redirect_uri").into(), policy.into());
        (made["meta_data"], made["description"]) = (body["meta_data"].clone(), text("description").into());
        self.replace(&server, &before, made)
    }

    fn rotate(&self, id: &str, client: &str) -> Outcome {
        let (server, Client(before)) = self.find(id, client, NO_API)?;
        let mut made = before.clone();
        made["secret"] = secret()?.into();
        self.replace(&server, &before, made)
    }

    /// Stores a changed client. Its tokens end where it has another policy.
    fn replace(&self, server: &Server, before: &Value, made: Value) -> Outcome {
        self.store(server, &made)?;
        if before["policyid"] != made["policyid"] {
            end_all(self.api, self.request, &server.id, made["id"].as_str().unwrap_or_default())?;
        }
        Ok(shown(&Client(made)))
    }

    fn delete(&self, id: &str, client: &str) -> Outcome {
        let Some(server) = self.server(id).filter(|server| server.is_oauth || server.is_jwt) else {
            return refused(404, NOT_FOUND);
        };
        end_all(self.api, self.request, id, client)?;
        let name = oauth_client(id, client);
        self.records.remove(&name)?;
        self.records.enlist(&oauth_of(id), &format!("oauth-client-index.{}", server.org), &name, false)?;
        Ok(json!({ "key": client, "status": "ok", "action": "deleted" }))
    }

    fn tokens(&self, id: &str, client: &str) -> Outcome {
        if self.server(id).is_none() {
            return refused(404, NOT_FOUND);
        }
        let told = |(token, ends): &(String, u64)| json!({ "code": token, "expires": ends });
        let all: Vec<Value> = self.records.tokens(id, client)?.iter().map(told).collect();
        let Some(page) = argument(self.request, "page").filter(|page| !page.is_empty()) else {
            return Ok(Value::Array(all));
        };
        let page = page.parse::<usize>().unwrap_or(1).max(1);
        let tokens: Vec<&Value> = all.iter().skip((page - 1).saturating_mul(PAGE)).take(PAGE).collect();
        let pages = all.len().div_ceil(PAGE);
        Ok(json!({
            "pagination": { "page_num": page, "page_total": pages, "page_size": PAGE }, "tokens": tokens,
        }))
    }

    fn end_refresh(&self, token: &str) -> Outcome {
        let Some(id) = argument(self.request, "api_id").filter(|id| !id.is_empty()) else {
            return refused(400, "Missing parameter api_id");
        };
        match self.server(id) {
            None => refused(404, "API for this refresh token not found"),
            Some(server) if !server.is_oauth => refused(400, "OAuth is not enabled on this API"),
            Some(_) => {
                self.records.remove(&format!("{}oauth-refresh.{token}", oauth_of(id)))?;
                Ok(json!({ "key": token, "status": "ok", "action": "deleted" }))
            }
        }
    }

    /// Ids of the APIs of an organisation that have a client.
    fn ids_of(&self, client_id: &str, org: &str) -> Result<Vec<String>, (u16, String)> {
        let mut ids = Vec::new();
        for server in
            self.api.loaded().servers().filter(|server| server.is_oauth && (org.is_empty() || server.org == org))
        {
            if client(&self.records, &server.id, client_id)?.is_some() {
                ids.push(server.id);
            }
        }
        Ok(ids)
    }

    fn apis_of(&self, client: &str, org: &str) -> Outcome {
        Ok(json!(self.ids_of(client, org)?))
    }

    fn revoke(&self) -> Outcome {
        let form = form(self.request);
        let of = |name: &str| field(&form, name);
        if of("token").is_empty() {
            return refused(400, "token is required");
        }
        if of("client_id").is_empty() {
            return refused(400, "client_id is required");
        }
        let ids = self.ids_of(of("client_id"), of("org_id"))?;
        if ids.is_empty() {
            return refused(400, "oauth client doesn't exist");
        }
        for id in ids {
            revoke(self.api, self.request, &id, (of("token"), of("token_type_hint")))?;
        }
        Ok(status("ok", "token revoked successfully"))
    }

    fn revoke_all(&self) -> Outcome {
        let form = form(self.request);
        let of = |name: &str| field(&form, name);
        for (name, text) in [("client_id", "client_id is required"), ("client_secret", "client_secret is required")] {
            if of(name).is_empty() {
                return refused(401, text);
            }
        }
        let ids = self.ids_of(of("client_id"), of("org_id"))?;
        if ids.is_empty() {
            return refused(404, "oauth client doesn't exist");
        }
        for id in ids {
            revoke_all(self.api, self.request, &id, (of("client_id"), of("client_secret")))?;
        }
        Ok(status("ok", "tokens revoked successfully"))
    }
}
