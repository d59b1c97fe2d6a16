//! Functions of the gateway that filters call, by the names of the ABI.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wasmi::{Error, Linker};

use crate::call::{Answer, ServiceRequest, Stage};
use crate::headers::{self, Change, Map};
use crate::host::{Cx, Done, Fault, Host, Status, give, read, write, write_u32};
use crate::{buffers, pairs, property, shared};

/// The module of the functions.
pub(crate) const MODULE: &str = "env";

/// Most bytes of a line in the log.
const MOST_LOGGED: u32 = 16 << 10;
/// Most requests to services that a filter asks for at a time.
const MOST_REQUESTS: usize = 16;

fn told(done: Done) -> Result<i32, Error> {
    match done {
        Ok(()) => Ok(Status::Ok as i32),
        Err(Fault::Status(status)) => Ok(status as i32),
        Err(Fault::Trap(error)) => Err(error),
    }
}

/// Nanoseconds, as many as a word has room for: until the year 2554.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn add(linker: &mut Linker<Host>) -> Result<(), Error> {
    fields(linker)?;
    bytes(linker)?;
    exchange(linker)?;
    gateway(linker)
}

fn fields(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker
        .func_wrap(MODULE, "proxy_get_header_map_pairs", |mut cx: Cx<'_>, map: u32, at: u32, length: u32| {
            told(Map::of(map).and_then(|map| {
                let pairs = pairs::encode(&headers::all(&cx, map)?);
                give(&mut cx, &pairs, (at, length))
            }))
        })?
        .func_wrap(MODULE, "proxy_get_header_map_size", |mut cx: Cx<'_>, map: u32, size: u32| {
            told(Map::of(map).and_then(|map| {
                let bytes = headers::size(&cx, map)?;
                write_u32(&mut cx, size, bytes as u32)
            }))
        })?
        .func_wrap(MODULE, "proxy_set_header_map_pairs", |cx: Cx<'_>, map: u32, at: u32, length: u32| {
            told(Map::of(map).and_then(|map| {
                let pairs = pairs::decode(&read(&cx, at, length)?).ok_or(Status::BadArgument)?;
                headers::set_all(&cx, map, &pairs)
            }))
        })?
        .func_wrap(
            MODULE,
            "proxy_get_header_map_value",
            |mut cx: Cx<'_>, map: u32, name: u32, length: u32, to: u32, to_length: u32| {
                told(Map::of(map).and_then(|map| {
                    let name = read(&cx, name, length)?;
                    let value = headers::get(&cx, map, &name)?;
                    give(&mut cx, &value, (to, to_length))
                }))
            },
        )?;
    for (name, kind) in
        [("proxy_add_header_map_value", Change::Add), ("proxy_replace_header_map_value", Change::Replace)]
    {
        linker.func_wrap(
            MODULE,
            name,
            move |cx: Cx<'_>, map: u32, name: u32, length: u32, value: u32, value_length: u32| {
                told(Map::of(map).and_then(|map| {
                    let (name, value) = (read(&cx, name, length)?, read(&cx, value, value_length)?);
                    headers::change(&cx, map, kind, &name, &value)
                }))
            },
        )?;
    }
    linker.func_wrap(MODULE, "proxy_remove_header_map_value", |cx: Cx<'_>, map: u32, name: u32, length: u32| {
        told(Map::of(map).and_then(|map| {
            let name = read(&cx, name, length)?;
            headers::change(&cx, map, Change::Remove, &name, b"")
        }))
    })?;
    Ok(())
}

fn bytes(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker
        .func_wrap(
            MODULE,
            "proxy_get_buffer_bytes",
            |mut cx: Cx<'_>, buffer: u32, start: u32, most: u32, to: u32, length: u32| {
                told(buffers::get(&cx, buffer, start, most).and_then(|bytes| give(&mut cx, &bytes, (to, length))))
            },
        )?
        .func_wrap(MODULE, "proxy_get_buffer_status", |mut cx: Cx<'_>, buffer: u32, length: u32, flags: u32| {
            told(buffers::get(&cx, buffer, 0, u32::MAX).and_then(|bytes| {
                write_u32(&mut cx, length, bytes.len() as u32)?;
                write_u32(&mut cx, flags, 0)
            }))
        })?
        .func_wrap(
            MODULE,
            "proxy_set_buffer_bytes",
            |mut cx: Cx<'_>, buffer: u32, start: u32, length: u32, at: u32, size: u32| {
                told(read(&cx, at, size).and_then(|bytes| buffers::set(&mut cx, buffer, (start, length), &bytes)))
            },
        )?
        .func_wrap(MODULE, "proxy_get_property", |mut cx: Cx<'_>, path: u32, length: u32, to: u32, to_length: u32| {
            told(read(&cx, path, length).and_then(|path| {
                let value = property::get(&mut cx, &path)?;
                give(&mut cx, &value, (to, to_length))
            }))
        })?
        .func_wrap(MODULE, "proxy_set_property", |mut cx: Cx<'_>, path: u32, length: u32, value: u32, size: u32| {
            told(read(&cx, path, length).and_then(|path| {
                let value = read(&cx, value, size)?;
                property::set(&mut cx, path, value)
            }))
        })?
        .func_wrap(
            MODULE,
            "proxy_get_shared_data",
            |mut cx: Cx<'_>, name: u32, length: u32, to: u32, to_length: u32, change: u32| {
                told(read(&cx, name, length).and_then(|name| {
                    let (value, last) = shared::get(cx.data().name, &name)?;
                    give(&mut cx, &value, (to, to_length))?;
                    write_u32(&mut cx, change, last)
                }))
            },
        )?
        .func_wrap(
            MODULE,
            "proxy_set_shared_data",
            |cx: Cx<'_>, name: u32, length: u32, value: u32, size: u32, change: u32| {
                told(
                    read(&cx, name, length)
                        .and_then(|name| shared::set(cx.data().name, name, read(&cx, value, size)?, change)),
                )
            },
        )?;
    Ok(())
}

fn exchange(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker
        .func_wrap(
            MODULE,
            "proxy_send_local_response",
            |mut cx: Cx<'_>, status: u32, _: u32, _: u32, body: u32, size: u32, fields: u32, length: u32, _: i32| {
                told(answer(&mut cx, status, (body, size), (fields, length)))
            },
        )?
        .func_wrap(
            MODULE,
            "proxy_http_call",
            |mut cx: Cx<'_>,
             name: u32,
             length: u32,
             fields: u32,
             fields_length: u32,
             body: u32,
             size: u32,
             _: u32,
             _: u32,
             timeout_ms: u32,
             number: u32| {
                told(
                    ask(&mut cx, (name, length), (fields, fields_length), (body, size), timeout_ms)
                        .and_then(|asked| write_u32(&mut cx, number, asked)),
                )
            },
        )?
        .func_wrap(MODULE, "proxy_continue_stream", |mut cx: Cx<'_>, of: u32| {
            // 0 is the request; what follows it is never paused.
            cx.data_mut().call.is_resumed |= of == 0;
            Status::Ok as i32
        })?
        .func_wrap(MODULE, "proxy_set_effective_context", |mut cx: Cx<'_>, context: i32| {
            cx.data_mut().call.context = context;
            Status::Ok as i32
        })?;
    Ok(())
}

fn answer(cx: &mut Cx<'_>, status: u32, body: (u32, u32), fields: (u32, u32)) -> Done {
    if !matches!(cx.data().call.stage, Stage::Request | Stage::Response) {
        return Err(Status::BadArgument.into());
    }
    let status = u16::try_from(status).ok().filter(|status| (200..=999).contains(status)).ok_or(Status::BadArgument)?;
    let fields = pairs::decode(&read(cx, fields.0, fields.1)?).ok_or(Status::BadArgument)?;
    let body = read(cx, body.0, body.1)?;
    cx.data_mut().call.answer = Some(Answer { status, fields, body });
    Ok(())
}

fn ask(cx: &mut Cx<'_>, upstream: (u32, u32), fields: (u32, u32), body: (u32, u32), timeout_ms: u32) -> Done<u32> {
    let upstream = String::from_utf8(read(cx, upstream.0, upstream.1)?).map_err(|_| Status::BadArgument)?;
    let fields = pairs::decode(&read(cx, fields.0, fields.1)?).ok_or(Status::BadArgument)?;
    let body = read(cx, body.0, body.1)?;
    let host = cx.data_mut();
    if host.call.stage != Stage::Request || host.call.requests.len() >= MOST_REQUESTS {
        return Err(Status::InternalFailure.into());
    }
    let is_https = fields.iter().any(|(name, value)| name == b":scheme" && value == b"https");
    let address = match upstream.contains("://") {
        true => upstream,
        false => format!("{}://{upstream}", if is_https { "https" } else { "http" }),
    };
    host.next_request = host.next_request.wrapping_add(1);
    let number = host.next_request;
    host.call.requests.push(ServiceRequest { number, address, fields, body, timeout_ms });
    Ok(number)
}

fn gateway(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker
        .func_wrap(MODULE, "proxy_log", |cx: Cx<'_>, level: u32, at: u32, length: u32| {
            told(read(&cx, at, length.min(MOST_LOGGED)).map(|text| {
                let (name, text) = (cx.data().name, String::from_utf8_lossy(&text));
                match level {
                    0 => tracing::trace!("{name}: {text}"),
                    1 => tracing::debug!("{name}: {text}"),
                    2 => tracing::info!("{name}: {text}"),
                    3 => tracing::warn!("{name}: {text}"),
                    _ => tracing::error!("{name}: {text}"),
                }
            }))
        })?
        .func_wrap(MODULE, "proxy_get_log_level", |mut cx: Cx<'_>, to: u32| {
            let levels = [tracing::Level::TRACE, tracing::Level::DEBUG, tracing::Level::INFO, tracing::Level::WARN];
            let most = tracing::level_filters::LevelFilter::current();
            let level = levels.iter().position(|level| *level <= most).unwrap_or(4);
            told(write_u32(&mut cx, to, level as u32))
        })?
        .func_wrap(MODULE, "proxy_get_current_time_nanoseconds", |mut cx: Cx<'_>, to: u32| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            told(write(&mut cx, to, &nanoseconds(now).to_le_bytes()))
        })?
        .func_wrap(MODULE, "proxy_set_tick_period_milliseconds", |cx: Cx<'_>, period: u32| match period {
            0 => Status::Ok as i32,
            _ => {
                tracing::warn!("{}: filters have no timers: proxy_set_tick_period_milliseconds", cx.data().name);
                Status::Unimplemented as i32
            }
        })?
        .func_wrap(MODULE, "proxy_done", || Status::Ok as i32)?
        .func_wrap(MODULE, "abort", |cx: Cx<'_>, _: u32, _: u32, line: u32, column: u32| -> Result<(), Error> {
            Err(Error::new(format!("{} has ended itself at line {line}, column {column}", cx.data().name)))
        })?;
    Ok(())
}
