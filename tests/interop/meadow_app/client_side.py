"""The task as a Flower ClientApp."""

import meadow
from task import task

app = meadow.client_app(task)
