//! The gateway's side of a machine: its memory, and the state that functions of the gateway share.

use std::collections::{BTreeMap, HashMap};

use wasmi::{Caller, Error, Memory, StoreLimits, TypedFunc};

use crate::call::Call;

/// Status codes of the ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    InvalidMemoryAccess = 6,
    CasMismatch = 8,
    InternalFailure = 10,
    Unimplemented = 12,
}

/// The end of a function of the gateway that has not done what it was asked.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The filter is told.
    Status(Status),
    /// The call ends.
    Trap(Error),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Trap(error)
    }
}

pub(crate) type Done<T = ()> = Result<T, Fault>;

/// Things kept for one request.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// True if the filter wants to see the body of the request.
    pub(crate) wants_request_body: bool,
    /// True if the filter wants to see the body of the response.
    pub(crate) wants_response_body: bool,
    /// Properties that the filter has set.
    pub(crate) properties: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// State of a machine on the gateway's side.
pub(crate) struct Host {
    /// Name of the plugin, for the log.
    pub(crate) name: &'static str,
    pub(crate) limits: StoreLimits,
    pub(crate) memory: Option<Memory>,
    /// The function by which the gateway gets memory for what it gives.
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    pub(crate) call: Call,
    pub(crate) streams: HashMap<i32, Stream>,
    pub(crate) next_request: u32,
}

/// A function of the gateway that is being called.
pub(crate) type Cx<'a> = Caller<'a, Host>;

fn memory(cx: &Cx<'_>) -> Done<Memory> {
    cx.data().memory.ok_or(Fault::Status(Status::InvalidMemoryAccess))
}

/// Bytes of the machine's memory.
pub(crate) fn read(cx: &Cx<'_>, at: u32, length: u32) -> Done<Vec<u8>> {
    let memory = memory(cx)?;
    let range = at as usize..(at as usize).saturating_add(length as usize);
    Ok(memory.data(cx).get(range).ok_or(Status::InvalidMemoryAccess)?.to_vec())
}

/// Writes into the machine's memory.
pub(crate) fn write(cx: &mut Cx<'_>, at: u32, bytes: &[u8]) -> Done {
    let memory = memory(cx)?;
    memory.write(cx, at as usize, bytes).map_err(|_| Fault::Status(Status::InvalidMemoryAccess))
}

pub(crate) fn write_u32(cx: &mut Cx<'_>, at: u32, number: u32) -> Done {
    write(cx, at, &number.to_le_bytes())
}

/// Gives bytes to the machine in memory that its own allocator hands out: place and length are written to `to`.
pub(crate) fn give(cx: &mut Cx<'_>, bytes: &[u8], to: (u32, u32)) -> Done {
    let length = u32::try_from(bytes.len()).map_err(|_| Status::InternalFailure)?;
    let mut place = 0;
    if length > 0 {
        let allocate = cx.data().allocate.ok_or(Status::InternalFailure)?;
        place = allocate.call(&mut *cx, length)?;
        if place == 0 {
            return Err(Status::InvalidMemoryAccess.into());
        }
        write(cx, place, bytes)?;
    }
    write_u32(cx, to.0, place)?;
    write_u32(cx, to.1, length)
}

/// The state of the request in whose context the call acts.
pub(crate) fn stream<'a>(cx: &'a mut Cx<'_>) -> Option<&'a mut Stream> {
    let host = cx.data_mut();
    host.streams.get_mut(&host.call.context)
}
