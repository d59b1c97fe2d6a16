//! Work that is left for the end of a worker: once it has drained, and while its sockets are still of use.

use std::cell::RefCell;

use crate::LocalFuture;

/// Work for the end.
type Work = Box<dyn FnOnce() -> LocalFuture<'static, ()>>;

thread_local! {
    static ENDING: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
}

/// Registers work of this worker for its end. It holds up the end of the process, so it has a deadline of its own. A
/// worker that is killed does not come to it.
pub fn at_worker_end(work: impl FnOnce() -> LocalFuture<'static, ()> + 'static) {
    ENDING.with_borrow_mut(|ending| ending.push(Box::new(work)));
}

/// Does the work that was registered in this thread. Called by the data plane.
pub async fn end_worker() {
    for work in ENDING.take() {
        work().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::{at_worker_end, end_worker};

    #[test]
    fn work_is_done_once() {
        let done = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let done = Rc::clone(&done);
            at_worker_end(|| Box::pin(async move { done.set(done.get() + 1) }));
        }
        weir_runtime::block_on(async {
            end_worker().await;
            end_worker().await;
        })
        .expect("a runtime");
        assert_eq!(done.get(), 2);
    }
}
