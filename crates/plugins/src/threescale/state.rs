//! State that the chain of a service keeps on a request.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use weir_plugin::Request;

use super::credentials::Found;
use super::limits::Entered;
use super::usage::Usage;
use crate::auth::openid_connect::jose::Claims;
use crate::traffic::limit_conn::remote::Entry;

/// State of a request.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Position in the chain: phases one after the other, and in each all links.
    pub(super) position: usize,
    /// The decoded path that a policy has made; not valid without `has_path`.
    path: Vec<u8>,
    has_path: bool,
    /// The credentials.
    pub(super) credentials: Found,
    /// True if credentials were looked for, so that the apicast policy has run.
    pub(super) is_identified: bool,
    /// Usage by the mapping rules.
    pub(super) usage: Usage,
    /// Numbers of the mapping rules that have matched.
    pub(super) matched: Vec<u16>,
    /// Claims of the verified token.
    pub(super) jwt: Option<Rc<Claims>>,
    /// Worker time in milliseconds at which the token ends; `u64::MAX` without one.
    pub(super) token_end: u64,
    /// Targets that policies have chosen, by the numbers of the policies, and the number among their targets.
    pub(super) chosen: Vec<(usize, usize)>,
    /// A path that takes the place of the request's, appended to that of the chosen target.
    pub(super) replaced: Option<String>,
    /// Numbers of the policy and of its rule whose cache is asked.
    pub(super) cached_by: Option<(usize, usize)>,
    /// Status of answers that a policy makes.
    pub(super) status: Option<u16>,
    /// True if the verdict that let the request pass is to be asked for again.
    pub(super) is_stale: bool,
    /// Milliseconds that the request is delayed.
    pub(super) delay: u64,
    /// Places among requests under way, given back at the end.
    pub(super) entered: Vec<Entered>,
    /// The same in a Redis.
    pub(super) entered_remotely: Vec<Entry>,
}

impl State {
    /// The decoded path, as policies have left it.
    pub(super) fn path<'p>(&'p self, request: &'p Request) -> &'p [u8] {
        if self.has_path { &self.path } else { request.path() }
    }

    /// Appends the path in the form in which it is sent.
    pub(super) fn write_encoded_path(&self, request: &Request, out: &mut Vec<u8>) {
        match self.has_path {
            true => weir_wire::target::encode_path(&self.path, out),
            false => out.extend_from_slice(request.encoded_path()),
        }
    }

    /// Replaces the path.
    pub(super) fn set_path(&mut self, path: &[u8]) {
        self.path.clear();
        self.path.extend_from_slice(path);
        self.has_path = true;
    }

    /// The number of the target that a policy has chosen.
    pub(super) fn target_of(&self, policy: usize) -> Option<usize> {
        self.chosen.iter().find(|(known, _)| *known == policy).map(|(_, target)| *target)
    }

    fn clear(&mut self) {
        let Self { path, credentials, usage, matched, chosen, entered, .. } = std::mem::take(self);
        let kept = |mut room: Vec<u8>| {
            room.clear();
            if room.capacity() > KEPT { Vec::new() } else { room }
        };
        *self = Self { path: kept(path), credentials, usage, matched, chosen, entered, ..Self::default() };
        self.token_end = u64::MAX;
        self.credentials.clear(KEPT);
        self.usage.clear();
        self.matched.clear();
        self.chosen.clear();
        self.entered.clear();
    }
}

/// Bytes of a text for which memory is kept.
const KEPT: usize = 4096;
/// States that a worker keeps for further requests.
const SPARE: usize = 256;

thread_local! {
    #[allow(clippy::vec_box, reason = "a state moves from request to request as a pointer")]
    static STATES: RefCell<Vec<Box<State>>> = const { RefCell::new(Vec::new()) };
}

/// A state that goes back to its worker at the end of a request.
#[derive(Debug)]
pub(super) struct Kept(Option<Box<State>>);

impl Kept {
    /// A state for a request.
    pub(super) fn take() -> Self {
        let spare = STATES.try_with(|states| states.try_borrow_mut().ok()?.pop());
        let state = spare.ok().flatten().unwrap_or_else(|| {
            let mut state = Box::<State>::default();
            state.clear();
            state
        });
        Self(Some(state))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(mut state) = self.0.take() else { return };
        state.clear();
        // At the end of a thread there is no list any more.
        let _ = STATES.try_with(|states| {
            if let Ok(mut states) = states.try_borrow_mut()
                && states.len() < SPARE
            {
                states.push(state);
            }
        });
    }
}

static NOTHING: &str = "a state is there until it is dropped";

impl Deref for Kept {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_deref().expect(NOTHING)
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_deref_mut().expect(NOTHING)
    }
}
