"""The audit room: jobs and their attempts, to be read and not to be written."""

from django.contrib import admin

from leasejobs.admin.jobs import JobAdmin
from leasejobs.models import Job

admin.site.register(Job, JobAdmin)
