//! Detects compiled texts and expressions that read the body of requests, which has to be complete before they run.
//!
//! Plugins compile their texts and expressions far from whoever has to know ([`finds_body_reading`]), on the same thread:
//! what lies between passes nothing on.

use std::cell::Cell;

thread_local! {
    /// True if a variable that reads the body was compiled since the last query.
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Does some work, and tells whether it compiled a variable that reads the body of the request.
pub fn finds_body_reading<T>(work: impl FnOnce() -> T) -> (T, bool) {
    /// Gives the one around it its due, also after a panic.
    struct Around(bool);
    impl Drop for Around {
        fn drop(&mut self) {
            SEEN.set(SEEN.get() || self.0);
        }
    }
    let _around = Around(SEEN.replace(false));
    let done = work();
    (done, SEEN.get())
}

/// Takes note of a variable that reads the body.
pub(crate) fn note() {
    SEEN.set(true);
}

#[cfg(test)]
mod tests {
    use super::finds_body_reading;
    use crate::Variable;

    #[test]
    fn a_variable_of_the_body_is_noticed() {
        let ((), plain) = finds_body_reading(|| assert!(Variable::parse("arg_x").is_ok()));
        let (inner, outer) = finds_body_reading(|| finds_body_reading(|| Variable::parse("post_arg_x").is_ok()));
        let (_, path) = finds_body_reading(|| Variable::parse("post_arg.x"));
        let (_, query) = finds_body_reading(|| Variable::parse("graphql_name"));
        let ((), after) = finds_body_reading(|| ());
        assert_eq!((plain, inner, outer, path, query, after), (false, (true, true), true, true, true, false));
    }
}
