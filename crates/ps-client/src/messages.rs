//! The messages in which requests are sent: small requests to the same server share one.

use super::channels::ServerRequest;
use distribute_ps_tables::Request;
use std::collections::HashMap;

/// The maximum total size in bytes of the requests, or of the responses, that share a message. A larger request has its
/// own message.
const MESSAGE_BYTES: usize = 1 << 20;

/// The maximum number of requests in a message.
const MAX_REQUESTS: usize = 1024;

/// Groups requests, which are passed with their positions, into messages. Returns the messages to each of `servers`
/// servers. Requests to servers that do not exist are omitted.
pub(super) fn messages_to_servers(
    servers: usize,
    requests: impl Iterator<Item = (usize, ServerRequest)>,
) -> Vec<Vec<Message>> {
    let mut of_servers: Vec<Messages> = (0..servers).map(|_| Messages::default()).collect();
    for (position, ServerRequest { server, request, bytes }) in requests {
        if let Some(messages) = of_servers.get_mut(server) {
            messages.add(position, request, bytes);
        }
    }
    of_servers.into_iter().map(|messages| messages.all).collect()
}

/// The messages to one server, while requests are added.
#[derive(Default)]
struct Messages {
    all: Vec<Message>,
    /// The index of the message to which small requests are added.
    open: usize,
    /// The index of the last message that contains a request for a table, by the name of the table.
    last: HashMap<String, usize>,
    /// The index of the first message to which requests for any table may be added.
    barrier: usize,
}

impl Messages {
    fn add(&mut self, position: usize, request: Request, bytes: usize) {
        let table = request.table().map(str::to_owned);
        // Large requests for other tables may come in between, but none for this table.
        let earliest = match &table {
            Some(table) => self.last.get(table).copied().unwrap_or_default().max(self.barrier),
            None => self.all.len().saturating_sub(1),
        };
        let open = self.all.get_mut(self.open).filter(|open| {
            self.open >= earliest
                && open.bytes.saturating_add(bytes) <= MESSAGE_BYTES
                && open.requests.len() < MAX_REQUESTS
        });
        let number = match open {
            Some(open) => {
                open.positions.push(position);
                open.requests.push(request);
                open.bytes += bytes;
                self.open
            }
            None => {
                self.all.push(Message { positions: vec![position], requests: vec![request], bytes });
                let number = self.all.len() - 1;
                if bytes < MESSAGE_BYTES {
                    self.open = number;
                }
                number
            }
        };
        match table {
            Some(table) => drop(self.last.insert(table, number)),
            None => self.barrier = number,
        }
    }
}

/// A message to one server, with the positions of its responses among all responses.
pub(super) struct Message {
    pub positions: Vec<usize>,
    pub requests: Vec<Request>,
    bytes: usize,
}

/// Combines the requests of a message into one request.
pub(super) fn batch(mut requests: Vec<Request>) -> Request {
    match (requests.len(), requests.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            requests.extend(last);
            Request::Batch(requests)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::TableSpec;
    use distribute_tensor::HostTensor;

    fn create(server: usize, name: &str, bytes: usize) -> ServerRequest {
        let spec = TableSpec::values(name, HostTensor::scalar(server as f32));
        ServerRequest { server, request: Request::Create(spec), bytes }
    }

    fn grouped(servers: usize, requests: Vec<ServerRequest>) -> Vec<Vec<Message>> {
        messages_to_servers(servers, requests.into_iter().enumerate())
    }

    #[test]
    fn small_questions_to_a_server_go_together_and_large_ones_alone() {
        let requests = vec![
            create(0, "a", 10),
            create(1, "b", 10),
            create(0, "c", MESSAGE_BYTES - 10),
            create(0, "d", 1),
            create(0, "e", 2 * MESSAGE_BYTES),
            create(0, "f", usize::MAX),
        ];
        let messages = grouped(2, requests);
        let positions = |messages: &Vec<Message>| {
            messages.iter().map(|message| message.positions.clone()).collect::<Vec<_>>()
        };
        assert_eq!(positions(&messages[0]), [vec![0, 2], vec![3], vec![4], vec![5]]);
        assert_eq!(positions(&messages[1]), [vec![1]]);
        // A small request joins those before a large one, unless that is for the same table. A request without a table
        // keeps its position.
        let requests = vec![
            create(0, "a", 10),
            create(0, "b", 2 * MESSAGE_BYTES),
            create(0, "c", 10),
            create(0, "b", 10),
            create(0, "a", 10),
            ServerRequest { server: 0, request: Request::List, bytes: 0 },
            create(0, "d", 2 * MESSAGE_BYTES),
            ServerRequest { server: 0, request: Request::List, bytes: 0 },
            create(0, "e", 10),
        ];
        let messages = grouped(1, requests);
        assert_eq!(positions(&messages[0]), [vec![0, 2], vec![1], vec![3, 4, 5], vec![6], vec![7, 8]]);
        let many = grouped(1, (0..MAX_REQUESTS + 1).map(|_| create(0, "a", 0)).collect());
        assert_eq!(
            many[0].iter().map(|message| message.requests.len()).collect::<Vec<_>>(),
            [MAX_REQUESTS, 1]
        );
    }
}
