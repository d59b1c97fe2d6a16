//! `/oauth2_tokens`: the tokens that the plugin `oauth2` has granted. They are entities like others for clients, but stand
//! beside the configuration: granting one changes nothing that has to be compiled.

use hyper::{Method, StatusCode};
use serde_json::Value;
use weir_admin::FamilyRequest;
use weir_plugins::kong::{Token, Tokens};

use crate::entities::{self, Entities};
use crate::fault::{self, Outcome, answer, empty};
use crate::kinds::{self, KindNumber};
use crate::read::page;
use crate::target::{Target, id_of};
use crate::write::Asked;
use crate::{body, made, shape};

/// The kind.
pub(crate) const KIND: &str = "oauth2_tokens";

/// Answers a request for tokens, or for one.
pub(crate) fn tokens(target: &Target<'_>, entities: &Entities, tokens: &Tokens, request: &FamilyRequest) -> Outcome {
    let now = made::now();
    let parent = target.parent_id(entities)?;
    let is_child = |entity: &Value| parent.as_ref().is_none_or(|(field, of)| entity[*field]["id"] == **of);
    let found = target.id.and_then(|id| match shape::is_uuid(id) {
        true => tokens.get(&id.to_ascii_lowercase()),
        false => tokens.by_access(id.as_bytes()),
    });
    let found = found.filter(|token| !token.has_ended(now)).map(|token| token.entity(now)).filter(is_child);
    match (&request.method, target.id) {
        (&Method::GET | &Method::HEAD, None) => {
            page(tokens.all(now).iter().map(|token| token.entity(now)).filter(is_child), request)
        }
        (&Method::GET | &Method::HEAD, Some(_)) => {
            let entity = found.ok_or_else(fault::not_found)?;
            let Some((field, to)) = target.through else { return Ok(answer(StatusCode::OK, &entity)) };
            let through = entity[field]["id"].as_str().and_then(|id| entities.get(to, id));
            through.map(|entity| answer(StatusCode::OK, entity)).ok_or_else(fault::not_found)
        }
        _ if target.through.is_some() => Err(fault::wrong_method()),
        (&Method::DELETE, Some(_)) => {
            if let Some(entity) = found {
                drop(tokens.remove(&id_of(&entity)));
            }
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, None) | (&Method::PUT | &Method::PATCH, Some(_)) => {
            write(target, entities, tokens, found.as_ref(), request)
        }
        _ => Err(fault::wrong_method()),
    }
}

fn write(
    target: &Target<'_>,
    entities: &Entities,
    tokens: &Tokens,
    found: Option<&Value>,
    request: &FamilyRequest,
) -> Outcome {
    let now = made::now();
    let (given, is_form) = body::read(&request.body, &request.fields)?;
    // Those that the new one may be, or be in the way of.
    let text = |name: &str| given.get(name).and_then(Value::as_str).unwrap_or_default();
    let rivals = [
        tokens.by_access(text("access_token").as_bytes()),
        tokens.by_refresh(text("refresh_token").as_bytes()),
        tokens.get(&text("id").to_ascii_lowercase()),
    ];
    let mut known = entities.clone();
    let rivals = rivals.into_iter().flatten().map(|token| token.entity(now));
    for entity in rivals.chain(found.cloned()) {
        known.set(&entities::key(target.kind, &id_of(&entity)), Some(&entity.to_string().into()));
    }
    let asked = Asked { entities: &known, method: &request.method, skips_hash: true };
    let (_, entity, status) = asked.entity(target, given, is_form)?;
    let failed = || fault::message(StatusCode::INTERNAL_SERVER_ERROR, "An unexpected error occurred");
    let client = kinds::named("oauth2_credentials").and_then(|(number, _)| {
        let credential = entities.get(number, entity["credential"]["id"].as_str()?)?;
        credential["client_id"].as_str()
    });
    let token = Token::read(&entity, client, now).map_err(|_| failed())?;
    if !tokens.put(token) {
        return Err(failed());
    }
    Ok(answer(status, &entity))
}

/// Removes the tokens whose client or service is not there any more.
pub(crate) fn remove_orphans(entities: &Entities, tokens: &Tokens) {
    let number = |kind: &str| kinds::named(kind).map(|(number, _)| number);
    let is_there = |kind: Option<KindNumber>, id: &str| kind.is_some_and(|number| entities.get(number, id).is_some());
    let (clients, services) = (number("oauth2_credentials"), number("services"));
    tokens.retain(|token| {
        is_there(clients, &token.credential) && token.service.as_ref().is_none_or(|service| is_there(services, service))
    });
}
