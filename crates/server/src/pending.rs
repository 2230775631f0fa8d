//! The calls of a connection that have no answer yet.

use crate::fault::Fault;
use crate::frame::Frame;
use distribute_net::{Message, Receiver};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// What a server has answered.
pub(crate) type Answer = Result<Message, Fault>;

/// The calls of a connection that have no answer yet, and the answers that nobody has taken.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    next: u64,
    calls: HashMap<u64, Slot>,
    /// How many calls have no answer yet, those included that nobody waits for any more.
    in_flight: usize,
    lost: Option<String>,
    on_loss: OnLoss,
}

/// A function that is called once, when no answer will come any more.
#[derive(Default)]
struct OnLoss(Option<LossCallback>);

type LossCallback = Box<dyn FnOnce(&str) + Send>;

impl fmt::Debug for OnLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLoss")
    }
}

#[derive(Debug)]
enum Slot {
    Waiting,
    /// Nobody waits for the answer any more, and the server still works on it.
    Abandoned,
    Answered(Answer),
}

impl State {
    pub fn has_room(&self, window: usize) -> bool {
        self.in_flight < window
    }

    /// Takes a place for a call, if there is room; gives its number.
    pub fn enter(&mut self, window: usize) -> Option<u64> {
        if !self.has_room(window) {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.in_flight += 1;
        self.calls.insert(id, Slot::Waiting);
        Some(id)
    }

    /// The answer to a call, if it has come; it is given once.
    pub fn take(&mut self, id: u64) -> Option<Answer> {
        if !self.is_answered(id) {
            return None;
        }
        match self.calls.remove(&id) {
            Some(Slot::Answered(answer)) => Some(answer),
            _ => None,
        }
    }

    pub fn is_answered(&self, id: u64) -> bool {
        matches!(self.calls.get(&id), Some(Slot::Answered(_)))
    }

    /// Nobody waits for this answer any more. The call keeps its place until the server has answered, so that it never has
    /// more of them than the window.
    pub fn abandon(&mut self, id: u64) {
        match self.calls.get_mut(&id) {
            Some(slot @ Slot::Waiting) => *slot = Slot::Abandoned,
            Some(Slot::Answered(_)) => drop(self.calls.remove(&id)),
            Some(Slot::Abandoned) | None => {}
        }
    }

    /// Why no answer will come any more.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        match self.calls.get_mut(&id) {
            Some(slot @ Slot::Waiting) => *slot = Slot::Answered(answer),
            Some(Slot::Abandoned) => drop(self.calls.remove(&id)),
            // The server answers what nobody has asked, or twice: nobody is waiting for it.
            Some(Slot::Answered(_)) | None => return,
        }
        self.in_flight -= 1;
    }
}

impl Pending {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until something changes, for at most `patience`.
    pub fn wait(&self, mut state: MutexGuard<'_, State>, patience: Duration) {
        self.changed.wait_for(&mut state, patience);
    }

    /// Calls a function when no answer will come any more, which may be now.
    pub fn on_loss(&self, call: impl FnOnce(&str) + Send + 'static) {
        let mut state = self.state.lock();
        state.on_loss = OnLoss(Some(Box::new(call)));
        self.wake(state);
    }

    /// Wakes all threads that wait, and calls the function of [`on_loss`](Self::on_loss) if no answer will come any more.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let lost = state.lost.clone().and_then(|reason| Some((reason, state.on_loss.0.take()?)));
        drop(state);
        self.changed.notify_all();
        if let Some((reason, call)) = lost {
            call(&reason);
        }
    }

    /// Nobody waits for this answer any more.
    pub fn abandon(&self, id: u64) {
        self.state.lock().abandon(id);
    }
}

impl Receiver for Pending {
    fn deliver(&self, _from: usize, message: Message) {
        let mut state = self.state.lock();
        match Frame::decode(message) {
            Ok(Frame::Answer(id, message)) => state.answer(id, Ok(message)),
            Ok(Frame::Failed(id, fault)) => state.answer(id, Err(fault)),
            Ok(Frame::Call { .. }) | Err(_) => {
                state.lost.get_or_insert("what it sent is no answer".to_owned());
            }
        }
        self.wake(state);
    }

    fn lose(&self, _from: usize, reason: String) {
        let mut state = self.state.lock();
        state.lost.get_or_insert(reason);
        self.wake(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;

    fn answer(pending: &Pending, id: u64) {
        pending.deliver(0, Frame::Answer(id, Message::new("", vec![id as u8])).encode());
    }

    #[test]
    fn answers_come_in_any_order_and_make_room() {
        let pending = Pending::default();
        let enter = || pending.lock().enter(2);
        assert_eq!([enter(), enter(), enter()], [Some(0), Some(1), None]);
        answer(&pending, 1);
        assert_eq!(pending.lock().take(0), None);
        assert_eq!(pending.lock().take(1), Some(Ok(Message::new("", vec![1]))));
        assert_eq!(pending.lock().take(1), None);
        assert_eq!([enter(), enter()], [Some(2), None]);
        pending.deliver(0, Frame::Failed(0, Fault::new(FaultKind::Failed, "no")).encode());
        assert_eq!(pending.lock().take(0), Some(Err(Fault::new(FaultKind::Failed, "no"))));
    }

    #[test]
    fn a_call_that_nobody_waits_for_keeps_its_place_until_it_is_answered() {
        let pending = Pending::default();
        let id = pending.lock().enter(1).unwrap();
        pending.abandon(id);
        assert_eq!(pending.lock().enter(1), None);
        answer(&pending, id);
        // Nor do answers that nobody has asked for make room.
        answer(&pending, id);
        answer(&pending, 77);
        assert_eq!(pending.lock().enter(1), Some(1));
        assert_eq!(pending.lock().enter(1), None);
        answer(&pending, 1);
        pending.abandon(1);
        assert!(pending.lock().calls.is_empty());
    }

    #[test]
    fn what_is_no_answer_is_a_loss() {
        let pending = Pending::default();
        pending.deliver(0, Message::new("garbage", ""));
        let (says, said) = std::sync::mpsc::channel();
        pending.lose(0, "later".to_owned());
        assert_eq!(pending.lock().lost(), Some("what it sent is no answer"));
        // Who wants to know is told, once, also afterwards.
        let again = says.clone();
        pending.on_loss(move |reason| says.send(reason.to_owned()).unwrap());
        pending.lose(0, "later".to_owned());
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["what it sent is no answer"]);
        let pending = Pending::default();
        pending.on_loss(move |reason| again.send(reason.to_owned()).unwrap());
        assert_eq!(said.try_iter().count(), 0);
        pending.lose(0, "now".to_owned());
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["now"]);
    }
}
