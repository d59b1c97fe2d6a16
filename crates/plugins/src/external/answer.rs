//! The runner's word about a request or an answer, put into practice.

use weir_plugin::{Flow, RequestCx, ResponseCx};
use weir_wire::name::{FieldName, Known};

use super::message::{AnswerRewrite, Pair, Reply, Rewrite};

/// Answers or changes a request as the runner says.
///
/// # Errors
/// Something in it cannot be used.
pub(super) fn apply(reply: &Reply, cx: &mut RequestCx<'_>) -> Result<Flow, String> {
    match reply {
        Reply::Pass => Ok(Flow::Continue),
        Reply::Stop { status, headers, body } => stop(cx, *status, headers, body),
        Reply::Rewrite(rewrite) => self::rewrite(cx, rewrite).map(|()| Flow::Continue),
        Reply::Answer(_) => Err("it has spoken of an answer".to_owned()),
    }
}

/// Changes an answer as the runner says.
///
/// # Errors
/// Something in it cannot be used.
pub(super) fn change(reply: &Reply, cx: &mut ResponseCx<'_>) -> Result<(), String> {
    let Reply::Answer(AnswerRewrite { status, headers, body }) = reply else {
        return Err("it has spoken of a request".to_owned());
    };
    let headers = headers.iter().map(sendable).collect::<Result<Vec<_>, _>>()?;
    if *status != 0 {
        cx.set_status(checked(*status)?);
    }
    // Of a name with several values the first takes the place of those before.
    let mut set: Vec<&FieldName> = Vec::new();
    for (name, value) in headers.iter().flatten() {
        match value {
            Some(value) if set.contains(&name) => cx.add_field(name, value),
            Some(value) => cx.set_field(name, value),
            None => drop(cx.remove_field(name)),
        }
        set.push(name);
    }
    if !body.is_empty() {
        cx.replace_body(body);
    }
    Ok(())
}

fn checked(status: u16) -> Result<u16, String> {
    match status {
        200..=999 => Ok(status),
        _ => Err(format!("it has answered with the status {status}")),
    }
}

/// A field that can be sent; its value is absent where the field is to go.
type Field<'p> = (FieldName, Option<&'p [u8]>);

/// Reads a name and a value; `None` for a field that frames a message, which is the gateway's.
fn sendable((name, value): &Pair) -> Result<Option<Field<'_>>, String> {
    let text = String::from_utf8_lossy(name);
    let name = FieldName::new(&text).ok_or_else(|| format!("it has sent a header with an invalid name, {text:?}"))?;
    if value.iter().flatten().any(|byte| !weir_wire::is_field_byte(*byte)) {
        return Err(format!("it has sent control characters in the header {text}"));
    }
    Ok((!name.is_framing()).then_some((name, value.as_deref())))
}

fn stop(cx: &mut RequestCx<'_>, status: u16, headers: &[Pair], body: &[u8]) -> Result<Flow, String> {
    let status = checked(if status == 0 { 200 } else { status })?;
    let headers = headers.iter().map(sendable).collect::<Result<Vec<_>, _>>()?;
    let mut answer = cx.reply(status);
    for (name, value) in headers.iter().flatten() {
        answer = answer.named(name, value.unwrap_or_default());
    }
    Ok(answer.body(body).done())
}

fn rewrite(cx: &mut RequestCx<'_>, rewrite: &Rewrite) -> Result<(), String> {
    let headers = rewrite.headers.iter().map(sendable).collect::<Result<Vec<_>, _>>()?;
    let response = rewrite.response_headers.iter().map(sendable).collect::<Result<Vec<_>, _>>()?;
    for (name, value) in headers.iter().flatten() {
        match value {
            Some(value) if name.id() == Known::Host => set_host(cx, value)?,
            _ if name.id() == Known::Host => return Err("it removes the host".to_owned()),
            Some(value) => cx.request_mut().set_field(name, value),
            None => cx.request_mut().remove_field(name),
        }
    }
    for (name, value) in response.iter().flatten() {
        match value {
            Some(value) => cx.set_response_field(name, |out| out.extend_from_slice(value)),
            None => {
                cx.unset_response_field(name);
            }
        }
    }
    if !rewrite.args.is_empty() {
        let names = rewrite.args.iter().map(|(name, _)| &**name);
        let added = rewrite.args.iter().filter_map(|(name, value)| Some((&**name, value.as_deref()?)));
        cx.request_mut().replace_arguments(names, added);
    }
    if rewrite.path.is_some() || !rewrite.args.is_empty() {
        set_target(cx, rewrite.path.as_deref())?;
    }
    if let Some(body) = &rewrite.body {
        cx.replace_body(body);
    }
    Ok(())
}

fn set_host(cx: &mut RequestCx<'_>, host: &[u8]) -> Result<(), String> {
    if weir_wire::authority::parse(host).is_err() {
        return Err("it sets a host that is none".to_owned());
    }
    cx.request_mut().upstream.set_host(host);
    Ok(())
}

/// Sets what the node is asked for: a path, which is encoded here, or the one so far, and the arguments.
fn set_target(cx: &mut RequestCx<'_>, path: Option<&[u8]>) -> Result<(), String> {
    let request = cx.request_mut();
    let mut target = Vec::new();
    match path {
        Some(path) if path.first() == Some(&b'/') => weir_wire::target::encode_path(path, &mut target),
        Some(_) => return Err("it sets a path that does not begin with /".to_owned()),
        // The node is asked for the path of the request.
        None if request.upstream.target.is_empty() => return Ok(()),
        None => target.extend(request.upstream.target.iter().take_while(|byte| **byte != b'?')),
    }
    if let Some(query) = request.query().filter(|query| !query.is_empty()) {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    request.upstream.target = target;
    Ok(())
}
