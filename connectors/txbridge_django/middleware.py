"""Answers of Django's views to the errors of announcements: add `txbridge_django.middleware.AnnouncementErrors`."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from txbridge.client.errors import AnnouncementError, answer_of


class AnnouncementErrors:
    """A middleware: 503 for PrepareError, with Retry-After, and OutcomeUnknownError; 200 for AlreadyDoneError."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, _: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, AnnouncementError):
            return None
        status, body, headers = answer_of(error)
        return JsonResponse(body, status=status, headers=headers)
