//! Requests to services, which a filter waits for.

use std::time::Duration;

use weir_plugin::{Callout, Io};
use weir_script::Services;
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::call::{ServiceAnswer, ServiceRequest};

/// Asks a service; the reason if it cannot be asked.
pub(crate) async fn ask(services: &Services, request: &ServiceRequest, io: &dyn Io) -> Result<ServiceAnswer, String> {
    let callout = callout(services, request)?;
    let answer = io.callout(callout).await.map_err(|error| error.reason().to_owned())?;
    let mut fields = vec![(b":status".to_vec(), answer.status().to_string().into_bytes())];
    fields.extend(answer.fields().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())));
    Ok(ServiceAnswer { fields, body: answer.body().to_vec() })
}

fn callout(services: &Services, request: &ServiceRequest) -> Result<Callout, String> {
    let Some(service) = services.find(&request.address, true) else {
        return Err(format!(
            "no request can go to {}: scheme, host and port have to stand as a text in the filter's configuration",
            request.address
        ));
    };
    let part = |name: &[u8]| request.fields.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
    let method = match Method::parse(part(b":method").unwrap_or(b"GET")) {
        Method::Other | Method::Connect => return Err("a service cannot be asked with this :method".to_owned()),
        method => method,
    };
    let target = part(b":path").unwrap_or(b"/");
    if target.first() != Some(&b'/') || !target.iter().all(u8::is_ascii_graphic) {
        return Err("expected an encoded :path that begins with /".to_owned());
    }
    let mut callout = service.callout_to(method, target);
    for (name, value) in request.fields.iter().filter(|(name, _)| !name.starts_with(b":")) {
        let name = std::str::from_utf8(name).ok().and_then(FieldName::new);
        let name = name.ok_or_else(|| "a field of the request to a service has an invalid name".to_owned())?;
        if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err("a field of the request to a service has an invalid value".to_owned());
        }
        if !name.is_framing() {
            callout.add_field(&name, value);
        }
    }
    if !request.body.is_empty() {
        callout.set_body(&request.body);
    }
    if request.timeout_ms > 0 {
        callout.set_timeout(Duration::from_millis(u64::from(request.timeout_ms)));
    }
    Ok(callout)
}
