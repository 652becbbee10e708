"""What the examples of the documentation write to."""

from django.db import models


class Order(models.Model):
    """Something somebody bought."""

    email = models.EmailField()
    total = models.IntegerField()
    receipt_sent_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"order {self.pk}"


class Payment(models.Model):
    """Money for an order, authorised first and captured later."""

    order = models.ForeignKey(Order, models.CASCADE)
    authorised_at = models.DateTimeField(null=True)
    captured_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"payment {self.pk}"
