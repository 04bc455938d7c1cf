//! COPY: data from the client and to the client.
//!
//! *Source*: PostgreSQL 15, section 55.2.6.
//!
//! *Not here*: data as rows (`execute/copy`).

use super::connection::Connection;
use super::interruption::Interruption;
use super::message::{ClientMessage, take_copy_data, violation};
use super::replies::Replies;
use super::rows::Rows;
use gannet_frontend::wire::{Row, copy_line};
use gannet_frontend::{Column, CopyOptions, SqlError};

/// Data of COPY that is given to the session at a time, if so much has come: some clients send a message for each row.
const TOGETHER_BYTES: usize = 64 << 10;

impl Connection {
    /// Takes the client's data, up to CopyDone or CopyFail.
    pub(super) async fn copy_in(&mut self, columns: usize) -> Result<(), Interruption> {
        self.stream.replies.copy_in_response(columns)?;
        let mut data = Vec::new();
        let abandoned = loop {
            match self.next_message().await {
                Ok(ClientMessage::CopyData(first)) => {
                    let mut chunk = &first[..];
                    if chunk.len() < TOGETHER_BYTES {
                        data.clear();
                        data.extend_from_slice(chunk);
                        take_copy_data(&mut self.stream.input, &mut data, TOGETHER_BYTES);
                        chunk = &data;
                    }
                    // After an error the session has ended the COPY; the remaining messages are skipped.
                    self.limits.run(&self.stream, self.session.copy_in(chunk)).await?;
                }
                Ok(ClientMessage::CopyDone) => break None,
                Ok(ClientMessage::CopyFail(message)) => break Some(message),
                // Clients send these before they learn that the statement is a COPY.
                Ok(ClientMessage::Flush | ClientMessage::Sync) => {}
                Ok(ClientMessage::Terminate) => return Err(Interruption::Disconnected),
                Ok(_) => {
                    return Err(Interruption::Fatal(violation(
                        "unexpected message type during COPY from stdin",
                    )));
                }
                Err(interruption) => {
                    return Err(self.abandon(interruption).await);
                }
            }
        };
        let tag = self.limits.run(&self.stream, self.session.copy_end(abandoned)).await?;
        self.stream.replies.command_complete(&tag);
        Ok(())
    }

    /// Ends a COPY whose data is incomplete.
    async fn abandon(&mut self, interruption: Interruption) -> Interruption {
        let reason = "the connection ended".to_owned();
        let ended: Result<String, SqlError> = self.session.copy_end(Some(reason)).await;
        // The interruption is reported; an abandoned COPY fails in any case.
        drop(ended);
        interruption
    }

    /// Sends the lines of a COPY, and those of the remaining rows.
    pub(super) async fn copy_out(
        &mut self,
        columns: &[Column],
        options: &CopyOptions,
        lines: Vec<Vec<u8>>,
        tag: &str,
    ) -> Result<(), Interruption> {
        self.stream.replies.copy_out_response(columns.len())?;
        let first = lines.len() - usize::from(options.header);
        for line in lines {
            self.stream.replies.copy_data(&line)?;
            self.stream.flush_if_full().await?;
        }
        let mut result = Rows::new(Vec::new(), self.session.take_rest());
        let (columns, options) = (columns.to_vec(), options.clone());
        let put = move |replies: &mut Replies, row: &Row| {
            replies.copy_data(&copy_line(row, &columns, &options))
        };
        let sent = self.send(&mut result, usize::MAX, put).await?;
        self.stream.replies.copy_done();
        let counted = format!("COPY {}", first + sent);
        self.stream.replies.command_complete(if tag.is_empty() { &counted } else { tag });
        Ok(())
    }
}
