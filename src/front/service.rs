//! A tower service, such as axum's `Router`, as a backend.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

use super::{Backend, Body};

/// Gives every request to a clone of a service, once that is ready.
#[derive(Clone, Debug)]
pub struct ServiceBackend<S>(pub S);

/// The answer of a [`ServiceBackend`].
pub struct ServiceFuture<S: Service<Request<Body>>> {
    service: S,
    request: Option<Request<Body>>,
    answer: Option<Pin<Box<S::Future>>>,
}

// Nothing in it is pinned in place: the service is only used by reference, and its future has a box of its own.
impl<S: Service<Request<Body>>> Unpin for ServiceFuture<S> {}

impl<S: Service<Request<Body>>> ServiceFuture<S> {
    /// The answer of `service` to `request`. Nothing runs before the first poll.
    pub fn new(service: S, request: Request<Body>) -> Self {
        ServiceFuture {
            service,
            request: Some(request),
            answer: None,
        }
    }
}

impl<S, R> Future for ServiceFuture<S>
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible>,
{
    type Output = Response<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response<R>> {
        let this = &mut *self;
        if this.request.is_some() {
            let Ok(()) = ready!(this.service.poll_ready(cx));
            this.answer = this
                .request
                .take()
                .map(|request| Box::pin(this.service.call(request)));
        }
        let answer = this
            .answer
            .as_mut()
            .expect("a future that the first poll puts there");
        answer.as_mut().poll(cx).map(|Ok(response)| response)
    }
}

impl<S, R> Backend for ServiceBackend<S>
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
    R: http_body::Body<Data = Bytes, Error: std::fmt::Display> + Send + 'static,
{
    type Body = R;
    type Future = ServiceFuture<S>;

    fn call(&self, request: Request<Body>) -> Self::Future {
        ServiceFuture::new(self.0.clone(), request)
    }
}
