# finds: nothing
# -*- coding: utf-8 -*-
"""Ein Handler mit Umlauten: ä, ö, ü, 漢字, 🎉."""
import json

def handler(event, context):
    für = [json.loads(record["body"]) for record in event["Records"]]; print("🎉", für)
