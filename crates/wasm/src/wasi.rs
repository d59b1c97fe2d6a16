//! The part of WASI (preview 1) that languages' runtimes need to start: clocks, random bytes, output to the log. There are
//! no files, no arguments and no environment.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rand::Rng;
use wasmi::{Error, Linker};

use crate::functions::nanoseconds;
use crate::host::{Cx, Done, Fault, Host, Status, read, write, write_u32};

/// The name of the module.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";

/// Numbers of errors of WASI.
const SUCCESS: u32 = 0;
const BAD_FILE: u32 = 8;
const FAULT: u32 = 21;
/// There is no such function.
pub(crate) const NO_SYSTEM: i32 = 52;

/// Most bytes of output, and of random bytes, in one call.
const MOST: u32 = 1 << 16;

fn told(done: Done<u32>) -> Result<u32, Error> {
    match done {
        Ok(number) => Ok(number),
        Err(Fault::Status(_)) => Ok(FAULT),
        Err(Fault::Trap(error)) => Err(error),
    }
}

pub(crate) fn add(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker
        .func_wrap(MODULE, "fd_write", |mut cx: Cx<'_>, file: u32, list: u32, count: u32, written: u32| {
            told(fd_write(&mut cx, file, (list, count), written))
        })?
        .func_wrap(MODULE, "random_get", |mut cx: Cx<'_>, at: u32, length: u32| told(random_get(&mut cx, at, length)))?
        .func_wrap(MODULE, "clock_time_get", |mut cx: Cx<'_>, clock: u32, _: u64, to: u32| {
            told(write(&mut cx, to, &clock_time(clock).to_le_bytes()).map(|()| SUCCESS))
        })?
        .func_wrap(MODULE, "environ_sizes_get", |mut cx: Cx<'_>, count: u32, bytes: u32| {
            told(nothing(&mut cx, count, bytes))
        })?
        .func_wrap(MODULE, "args_sizes_get", |mut cx: Cx<'_>, count: u32, bytes: u32| {
            told(nothing(&mut cx, count, bytes))
        })?
        .func_wrap(MODULE, "environ_get", |_: u32, _: u32| SUCCESS)?
        .func_wrap(MODULE, "args_get", |_: u32, _: u32| SUCCESS)?
        .func_wrap(MODULE, "sched_yield", || SUCCESS)?
        .func_wrap(MODULE, "fd_prestat_get", |_: u32, _: u32| BAD_FILE)?
        .func_wrap(MODULE, "fd_close", |_: u32| BAD_FILE)?
        .func_wrap(MODULE, "proc_exit", |code: u32| -> Result<(), Error> {
            Err(Error::new(format!("the filter has ended itself with {code}")))
        })?;
    Ok(())
}

fn nothing(cx: &mut Cx<'_>, count: u32, bytes: u32) -> Done<u32> {
    write_u32(cx, count, 0)?;
    write_u32(cx, bytes, 0)?;
    Ok(SUCCESS)
}

/// Output to files 1 and 2 goes to the log.
fn fd_write(cx: &mut Cx<'_>, file: u32, (list, count): (u32, u32), written: u32) -> Done<u32> {
    if !matches!(file, 1 | 2) {
        return Ok(BAD_FILE);
    }
    let list = read(cx, list, count.min(1024) * 8)?;
    let mut text = Vec::new();
    for piece in list.as_chunks::<8>().0 {
        let [a, b, c, d, e, f, g, h] = *piece;
        let (at, length) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let length = length.min(MOST - text.len() as u32);
        text.extend_from_slice(&read(cx, at, length)?);
    }
    tracing::info!("{}: {}", cx.data().name, String::from_utf8_lossy(&text).trim_end());
    write_u32(cx, written, text.len() as u32)?;
    Ok(SUCCESS)
}

fn random_get(cx: &mut Cx<'_>, at: u32, length: u32) -> Done<u32> {
    if length > MOST {
        return Err(Status::BadArgument.into());
    }
    let mut bytes = vec![0; length as usize];
    rand::rng().fill_bytes(&mut bytes);
    write(cx, at, &bytes)?;
    Ok(SUCCESS)
}

/// Nanoseconds of a clock: 0 is the time of day, others only go forward.
#[allow(
    clippy::disallowed_methods,
    reason = "a filter measures its own time, during which the worker's clock stands still"
)]
fn clock_time(clock: u32) -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    match clock {
        0 => nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
        _ => nanoseconds(START.get_or_init(Instant::now).elapsed()),
    }
}
