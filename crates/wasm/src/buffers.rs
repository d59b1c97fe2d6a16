//! The buffers of a call: bodies, the configuration, and the bodies of services' answers.

use crate::host::{Cx, Done, Status};

/// The bytes of a buffer from `start` on, `most` of them at most.
pub(crate) fn get(cx: &Cx<'_>, buffer: u32, start: u32, most: u32) -> Done<Vec<u8>> {
    let call = &cx.data().call;
    let whole: &[u8] = match buffer {
        0 | 1 => call.body.as_deref().ok_or(Status::NotFound)?,
        4 => call.service_answer.as_ref().map(|answer| &*answer.body).ok_or(Status::NotFound)?,
        // There is no configuration of the machine.
        6 => return Err(Status::NotFound.into()),
        7 => call.conf.as_deref().ok_or(Status::NotFound)?,
        2 | 3 | 5 => return Err(Status::NotFound.into()),
        _ => return Err(Status::BadArgument.into()),
    };
    let start = start as usize;
    let end = start.saturating_add(most as usize).min(whole.len());
    Ok(whole.get(start..end).ok_or(Status::BadArgument)?.to_vec())
}

/// Replaces `length` bytes of a body from `start` on; behind its end, the bytes are appended.
pub(crate) fn set(cx: &mut Cx<'_>, buffer: u32, (start, length): (u32, u32), bytes: &[u8]) -> Done {
    if !matches!(buffer, 0 | 1) {
        return Err(Status::BadArgument.into());
    }
    let call = &mut cx.data_mut().call;
    let body = call.body.as_mut().ok_or(Status::BadArgument)?;
    let start = (start as usize).min(body.len());
    let end = start.saturating_add(length as usize).min(body.len());
    body.splice(start..end, bytes.iter().copied());
    call.has_changed_body = true;
    Ok(())
}
